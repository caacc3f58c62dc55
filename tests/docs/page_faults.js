// What is wrong with the page as it is drawn now, as a list of sentences. `wide`: the window has room, so that nothing needs to scroll.
// `first`: also what does not depend on the window.
(wide, first) => {
  const faults = [];
  const main = document.querySelector("[role=main]") || document.body;
  const words = (element) => (element.innerText || element.getAttribute("alt") || "").trim().replace(/\s+/g, " ").slice(0, 60);
  const name = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") || ""}"> ${words(element)}`;
  // KaTeX writes every formula twice, once for screen readers; what is folded away is not drawn
  const hidden = (element) =>
    element.closest(".katex-mathml, .visually-hidden, details:not([open])") !== null || element.getClientRects().length === 0;

  // --- nothing is cut off
  const page = document.documentElement;
  if (page.scrollWidth > window.innerWidth) faults.push(`the page is ${page.scrollWidth} px wide in a window of ${window.innerWidth}`);
  const scrolls = "pre, .formula, .table-wrapper, .sgdynamics-table"; // what may scroll in its own box where the window is narrow
  for (const element of document.querySelectorAll("body, .page, .main, .content, [role=main], [role=main] *")) {
    if (element.closest("svg") || hidden(element)) continue;
    const style = getComputedStyle(element);
    if (style.overflowX !== "visible" && style.display !== "inline" && element.scrollWidth > element.clientWidth + 1) {
      const more = element.scrollWidth - element.clientWidth;
      if (wide || !element.matches(scrolls) || ["hidden", "clip"].includes(style.overflowX)) faults.push(`cut by ${more} px: ${name(element)}`);
    }
    if (["hidden", "clip"].includes(style.overflowY) && style.display !== "inline" && element.scrollHeight > element.clientHeight + 2) {
      faults.push(`cut below by ${element.scrollHeight - element.clientHeight} px: ${name(element)}`);
    }
  }

  // --- nothing lies on something else: blocks without blocks in them, and an equation beside its number
  const blocks = "p, pre, td, th, h1, h2, h3, h4, dt, img, .equation > *, figcaption";
  const boxes = [...main.querySelectorAll(blocks)]
    .filter((element) => !hidden(element) && !element.closest("svg") && element.querySelector(blocks) === null)
    .map((element) => ({ element, box: element.getBoundingClientRect() }))
    .filter(({ box }) => box.width > 0 && box.height > 0)
    .sort((one, other) => one.box.top - other.box.top);
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length && boxes[j].box.top < boxes[i].box.bottom - 2; j++) {
      const [one, other] = [boxes[i], boxes[j]];
      const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const down = Math.min(one.box.bottom, other.box.bottom) - other.box.top;
      if (across > 2 && down > 2) faults.push(`overprinted by ${across.toFixed(0)} x ${down.toFixed(0)} px: ${name(one.element)} and ${name(other.element)}`);
    }
  }

  if (!first) return faults;

  // --- pictures are there
  for (const image of document.images) if (image.complete && image.naturalWidth === 0) faults.push(`no picture: ${image.src}`);

  // --- every character has a glyph: one that has none is drawn as what stands for all of them
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 40;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const drawn = (character, font) => {
    context.clearRect(0, 0, 40, 40);
    context.font = font;
    context.fillText(character, 4, 28);
    return context.getImageData(0, 0, 40, 40).data.join();
  };
  const seen = new Map();
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const odd = text.data.replace(/[\u0000-\u007e\s\p{M}\p{Cf}]/gu, "");
    if (odd === "" || text.parentElement.closest("script, style, .katex-mathml")) continue;
    const style = getComputedStyle(text.parentElement);
    const font = `${style.fontStyle} ${style.fontWeight} 20px ${style.fontFamily}`;
    if (!seen.has(font)) seen.set(font, new Set());
    for (const character of odd) seen.get(font).add(character);
  }
  for (const [font, characters] of seen) {
    const none = drawn("\u0378", font); // a place that Unicode has not given away
    for (const character of characters) {
      if (drawn(character, font) === none) faults.push(`no glyph for ${character} (U+${character.codePointAt(0).toString(16)}) in ${font}`);
    }
  }

  // --- no markup is left as it was typed
  const copy = main.cloneNode(true);
  for (const element of copy.querySelectorAll("pre, code, script, style, .katex, dt")) element.remove();
  for (const found of copy.textContent.matchAll(/.{0,30}(\*\*|\$\$?\S|\|\s*-{3}|\]\(|``|:\w+:`|\{\w+\}`).{0,30}/g)) faults.push(`raw markup: ${found[0]}`);
  for (const element of main.querySelectorAll("em, strong")) {
    const [before, after] = [element.previousSibling?.textContent || "", element.nextSibling?.textContent || ""];
    if (element.closest("dl, pre, .sig") === null && (/[\p{L}\p{N}]$/u.test(before) || /^[\p{L}\p{N}]/u.test(after))) {
      faults.push(`stars taken for emphasis: ${before.slice(-20)}${element.textContent}${after.slice(0, 20)}`);
    }
  }
  return faults;
}
