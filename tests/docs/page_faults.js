// The faults of the page in the current window, as a list of sentences. If `wide`, nothing may need to scroll.
// If `first`, the checks that do not depend on the window are included.
(wide, first) => {
  const faults = [];
  const main = document.querySelector("[role=main]") || document.body;
  const words = (element) => (element.innerText || element.getAttribute("alt") || "").trim().replace(/\s+/g, " ").slice(0, 60);
  const name = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") || ""}"> ${words(element)}`;
  // KaTeX writes each formula twice, once for screen readers; closed details are not drawn.
  const hidden = (element) =>
    element.closest(".katex-mathml, .visually-hidden, details:not([open])") !== null || element.getClientRects().length === 0;

  // --- nothing is cut off
  const page = document.documentElement;
  if (page.scrollWidth > window.innerWidth) faults.push(`the page is ${page.scrollWidth} px wide in a window of ${window.innerWidth}`);
  const scrolls = "pre, .formula, .table-wrapper, .sgdynamics-table"; // elements that may scroll in a narrow window
  for (const element of document.querySelectorAll("body, .page, .main, .content, [role=main], [role=main] *")) {
    if (element.closest("svg") || hidden(element)) continue;
    const style = getComputedStyle(element);
    if (style.overflowX !== "visible" && style.display !== "inline" && element.scrollWidth > element.clientWidth + 1) {
      const excess = element.scrollWidth - element.clientWidth;
      if (wide || !element.matches(scrolls) || ["hidden", "clip"].includes(style.overflowX)) faults.push(`cut by ${excess} px: ${name(element)}`);
    }
    if (["hidden", "clip"].includes(style.overflowY) && style.display !== "inline" && element.scrollHeight > element.clientHeight + 2) {
      faults.push(`cut below by ${element.scrollHeight - element.clientHeight} px: ${name(element)}`);
    }
  }

  // --- no overlaps: innermost blocks, and equations with their numbers
  const blocks = "p, pre, td, th, h1, h2, h3, h4, dt, img, .equation > *, figcaption";
  const boxes = [...main.querySelectorAll(blocks)]
    .filter((element) => !hidden(element) && !element.closest("svg") && element.querySelector(blocks) === null)
    .map((element) => ({ element, box: element.getBoundingClientRect() }))
    .filter(({ box }) => box.width > 0 && box.height > 0)
    .sort((a, b) => a.box.top - b.box.top);
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length && boxes[j].box.top < boxes[i].box.bottom - 2; j++) {
      const [upper, lower] = [boxes[i], boxes[j]];
      const across = Math.min(upper.box.right, lower.box.right) - Math.max(upper.box.left, lower.box.left);
      const down = Math.min(upper.box.bottom, lower.box.bottom) - lower.box.top;
      if (across > 2 && down > 2) faults.push(`overprinted by ${across.toFixed(0)} x ${down.toFixed(0)} px: ${name(upper.element)} and ${name(lower.element)}`);
    }
  }

  if (!first) return faults;

  // --- all pictures are loaded
  for (const image of document.images) if (image.complete && image.naturalWidth === 0) faults.push(`no picture: ${image.src}`);

  // --- all characters have a glyph: those without one are drawn as the replacement glyph
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 40;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const drawn = (character, font) => {
    context.clearRect(0, 0, 40, 40);
    context.font = font;
    context.fillText(character, 4, 28);
    return context.getImageData(0, 0, 40, 40).data.join();
  };
  const charactersOfFont = new Map();
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const odd = text.data.replace(/[\u0000-\u007e\s\p{M}\p{Cf}]/gu, "");
    if (odd === "" || text.parentElement.closest("script, style, .katex-mathml")) continue;
    const style = getComputedStyle(text.parentElement);
    const font = `${style.fontStyle} ${style.fontWeight} 20px ${style.fontFamily}`;
    if (!charactersOfFont.has(font)) charactersOfFont.set(font, new Set());
    for (const character of odd) charactersOfFont.get(font).add(character);
  }
  for (const [font, characters] of charactersOfFont) {
    const missing = drawn("\u0378", font); // an unassigned code point, drawn as the replacement glyph
    for (const character of characters) {
      if (drawn(character, font) === missing) faults.push(`no glyph for ${character} (U+${character.codePointAt(0).toString(16)}) in ${font}`);
    }
  }

  // --- no raw markup is left
  const copy = main.cloneNode(true);
  for (const element of copy.querySelectorAll("pre, code, script, style, .katex, dt")) element.remove();
  for (const match of copy.textContent.matchAll(/.{0,30}(\*\*|\$\$?\S|\|\s*-{3}|\]\(|``|:\w+:`|\{\w+\}`).{0,30}/g)) faults.push(`raw markup: ${match[0]}`);
  for (const element of main.querySelectorAll("em, strong")) {
    const [before, after] = [element.previousSibling?.textContent || "", element.nextSibling?.textContent || ""];
    if (element.closest("dl, pre, .sig") === null && (/[\p{L}\p{N}]$/u.test(before) || /^[\p{L}\p{N}]/u.test(after))) {
      faults.push(`stars taken for emphasis: ${before.slice(-20)}${element.textContent}${after.slice(0, 20)}`);
    }
  }
  return faults;
}
