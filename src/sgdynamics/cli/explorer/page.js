// The explorer's page. With a server it requests settings, curves and files; without one (in the documentation) it
// reads all of them from window.SGDYNAMICS_EXPLORER. The state is the part of the address that follows the #.
(() => {
  "use strict";
  const static_ = window.SGDYNAMICS_EXPLORER || null;
  const byId = (name) => document.getElementById(`explorer-${name}`);
  // One colour per student unit, distinguishable for colour-blind readers and on light and dark backgrounds.
  const UNIT_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d"];
  const RUN_COLOUR = "var(--explorer-runs)"; // depends on light or dark mode: page.css
  const MEAN_COLOUR = "var(--explorer-mean)";
  const DEBOUNCE = 120; // milliseconds without a move before anything is requested
  const BAND_OPACITY = 0.18;
  const DISAGREEMENT = 4; // standard errors between theory and runs that the page explains
  const page = Math.random().toString(36).slice(2);
  let settings, state, drawn, timer, request;
  let number = 0;
  const compiled = new Set();

  // --- the state and its address
  const address = (value) => Object.keys(value).map((name) => `${name}=${encodeURIComponent(value[name])}`).join("&");
  const fromAddress = () => {
    const parsed = { ...settings.first };
    for (const name in parsed) if (!settings.sliders[name].includes(parsed[name])) parsed[name] = settings.sliders[name][0];
    for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
      // the server names what is wrong with text that is not a number, and with unknown names
      parsed[name] = typeof settings.first[name] === "number" && text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    return parsed;
  };
  const nearest = (values, value) => {
    if (typeof value !== "number") return Math.max(values.indexOf(value), 0);
    return values.reduce((best, candidate, index) => (Math.abs(candidate - value) < Math.abs(values[best] - value) ? index : best), 0);
  };

  // --- controls
  const show = () => {
    for (const name in settings.sliders) {
      const control = byId(name);
      const values = settings.sliders[name];
      control.value = control.tagName === "SELECT" ? state[name] : nearest(values, state[name]);
      control.setAttribute("aria-valuetext", String(state[name]));
      const output = control.parentElement.querySelector("output");
      if (output) output.textContent = String(state[name]);
    }
    byId("link").href = `#${address(state)}`;
    for (const kind of ["py", "toml", "pdf"]) {
      byId(kind).href = static_ ? `data:text/plain;charset=utf-8,${encodeURIComponent(filled(kind))}` : `export?kind=${kind}&${address(state)}`;
    }
  };
  const filled = (kind) => (settings.templates[kind] || "").replace(/\$(\w+)/g, (_, name) => String(state[name]));
  const build = () => {
    for (const name in settings.sliders) {
      const control = byId(name);
      const values = settings.sliders[name];
      control.parentElement.hidden = values.length < 2;
      if (control.tagName === "SELECT") {
        for (const value of values) control.add(new Option(value, value));
      } else {
        Object.assign(control, { min: 0, max: values.length - 1, step: 1 });
      }
      control.addEventListener("input", () => {
        state = { ...state, [name]: control.tagName === "SELECT" ? control.value : values[Number(control.value)] };
        history.replaceState(null, "", `#${address(state)}`);
        update();
      });
    }
    byId("pdf").hidden = Boolean(static_);
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
    byId("link").addEventListener("click", () => navigator.clipboard?.writeText(byId("link").href).catch(() => {}));
    window.addEventListener("hashchange", () => {
      state = fromAddress();
      update();
    });
    new ResizeObserver(() => drawn && draw(drawn)).observe(document.querySelector(".explorer-panels"));
  };

  // --- curves
  const say = (text, wrong = false) => {
    byId("status").textContent = text;
    byId("status").classList.toggle("wrong", wrong);
  };
  const busy = (yes) => document.querySelector(".explorer-panels").classList.toggle("busy", yes);
  const update = () => {
    show();
    clearTimeout(timer);
    request?.abort(); // the earlier state is no longer of interest
    number += 1;
    if (static_) look();
    else timer = setTimeout(ask, DEBOUNCE, number);
  };
  const look = () => {
    const curves = static_.curves[address(state)];
    if (curves) {
      accept(curves);
      return say(["Computed when these pages were built.", ...curves.notes].join(" "));
    }
    for (const name in settings.sliders) {
      if (settings.sliders[name].includes(state[name])) continue;
      return say(`${name} = ${state[name]}: this page has only ${settings.sliders[name].join(", ")}; sgdynamics explore computes any.`, true);
    }
    say("This page does not have this state: sgdynamics explore computes it.", true);
  };
  // Exact runs come in pieces: each answer has longer runs than the one before, until they are complete.
  const ask = async (mine) => {
    const program = `${state.width} ${state.activation}`;
    const began = performance.now();
    say(compiled.has(program) ? "Computing …" : `Compiling for width ${state.width} and ${state.activation}: ten seconds or so, once.`);
    busy(true);
    request = new AbortController();
    try {
      for (let pieces = 1; ; pieces += 1) {
        const answer = await fetch(`curves?page=${page}&number=${mine}&pieces=${pieces}&${address(state)}`, { signal: request.signal });
        const curves = await answer.json();
        if (mine !== number) return; // a newer request is on its way
        if (!answer.ok) return say(curves.error, true);
        compiled.add(program);
        accept(curves);
        busy(false);
        const seconds = ((performance.now() - began) / 1000).toFixed(2);
        if (curves.complete) return say([`Computed in ${seconds} s.`, ...curves.notes].join(" "));
        say([`Exact runs have reached t = ${short(curves.exact.t.at(-1))} …`, ...curves.notes].join(" "));
      }
    } catch (error) {
      if (mine !== number || error.name === "AbortError") return;
      say("No answer: has `sgdynamics explore` ended? Start it again, and load this page anew.", true);
    } finally {
      if (mine === number) busy(false);
    }
  };
  const accept = (curves) => {
    drawn = curves;
    draw(curves);
  };

  // --- drawing
  const SVG = "http://www.w3.org/2000/svg";
  const put = (parent, tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const name in attributes) {
      // the content policy forbids style attributes, but not styles set by the script
      if (name === "style") element.style.cssText = attributes[name];
      else element.setAttribute(name, attributes[name]);
    }
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const short = (value) => {
    const rounded = Number(value.toPrecision(3));
    return rounded !== 0 && (Math.abs(rounded) < 1e-3 || Math.abs(rounded) >= 1e4) ? rounded.toExponential() : String(rounded);
  };
  const linearTicks = (low, high, most) => {
    const raw = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((candidate) => candidate >= raw);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
    return ticks;
  };
  const logTicks = (low, high) => {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const leap = Math.max(1, Math.ceil((last - first) / 6));
    const digits = last - first <= 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first; power <= last; power += leap) for (const digit of digits) ticks.push(digit * 10 ** power);
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  };
  const STROKES = {
    line: { "stroke-width": 2 },
    mean: { "stroke-width": 2 },
    dashed: { "stroke-width": 2, "stroke-dasharray": "7 4" },
    thin: { "stroke-width": 1.2 },
    dotted: { "stroke-width": 1.6, "stroke-dasharray": "2 3" },
    faint: { "stroke-width": 1, "stroke-opacity": "var(--explorer-faint)" },
  };
  // An attribute does not take a CSS variable: colours and opacities go into the style.
  const styled = (colour, kind) => {
    const { "stroke-opacity": opacity, ...stroke } = STROKES[kind];
    return { ...stroke, style: `stroke: ${colour}${opacity ? `; stroke-opacity: ${opacity}` : ""}` };
  };
  // series: {x, y, colour, kind, name}; legend: [colour, kind, text]; kind is one of STROKES, "dots" (every second
  // point), "points" (all), "band" (from y to y2) or "end" (a point with an error bar from y2 to y3).
  // options: label and text of the times, and the range of the other axis, beyond which curves are cut off.
  const panel = (svg, series, legend, log, description, { label = "t = lr steps / d", timeText = short, range = null } = {}) => {
    svg.replaceChildren();
    const { width, height } = svg.getBoundingClientRect();
    const box = { left: 52, right: width - 18, top: 26, bottom: height - 38 };
    const good = (value) => typeof value === "number" && Number.isFinite(value) && (!log || value > 0);
    const all = series.flatMap((curve) => curve.y.filter(good));
    const times = series.flatMap((curve) => curve.x);
    if (!all.length || width < 100) return;
    let [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    if (range) [low, high] = range;
    else if (log) [low, high] = [low / 1.3, high * 1.3];
    else [low, high] = [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
    const end = Math.max(...times) || 1;
    // legend first: its lines decide where the axes begin
    let [x, y] = [box.left, 12];
    for (const [colour, kind, name] of legend) {
      const text = put(svg, "text", { x: x + 22, y: y + 4 }, name);
      const length = text.getComputedTextLength();
      if (x + 22 + length > width && x > box.left) {
        [x, y] = [box.left, y + 16];
        text.setAttribute("x", x + 22);
        text.setAttribute("y", y + 4);
      }
      if (kind === "dots" || kind === "points") put(svg, "circle", { cx: x + 9, cy: y, r: 2.6, style: `fill: ${colour}` });
      else if (kind === "band") put(svg, "rect", { x, y: y - 5, width: 18, height: 10, style: `fill: ${colour}`, "fill-opacity": BAND_OPACITY });
      else put(svg, "line", { x1: x, x2: x + 18, y1: y, y2: y, ...styled(colour, kind) });
      x += 34 + length;
    }
    box.top = y + 14;
    const across = (t) => box.left + (t / end) * (box.right - box.left);
    const scaled = log ? Math.log : (value) => value;
    const up = (value) => box.bottom - ((scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (box.bottom - box.top);
    for (const value of log ? logTicks(low, high) : linearTicks(low, high, 6)) {
      put(svg, "line", { x1: box.left, x2: box.right, y1: up(value), y2: up(value), stroke: "currentColor", "stroke-opacity": 0.12 });
      put(svg, "text", { x: box.left - 6, y: up(value) + 4, "text-anchor": "end" }, short(value));
    }
    for (const value of linearTicks(0, end, width > 420 ? 6 : 4)) {
      put(svg, "line", { x1: across(value), x2: across(value), y1: box.bottom, y2: box.bottom + 4, stroke: "currentColor" });
      put(svg, "text", { x: across(value), y: box.bottom + 18, "text-anchor": "middle" }, timeText(value));
    }
    put(svg, "rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "none", stroke: "currentColor", "stroke-opacity": 0.5 });
    put(svg, "text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, label);
    const curves = range ? put(svg, "g", { "clip-path": `url(#${svg.id}-clip)` }) : svg;
    if (range) {
      const clip = put(svg, "clipPath", { id: `${svg.id}-clip` });
      put(clip, "rect", { x: box.left, y: box.top, width: width - box.left, height: box.bottom - box.top });
    }
    for (const { x: ts, y: ys, y2, y3, colour, kind, name } of series) {
      const points = ts.map((t, index) => (good(ys[index]) ? [across(t), up(ys[index])] : null));
      const group = put(curves, "g", { class: "explorer-curve" });
      if (name) put(group, "title", {}, name); // shown when the pointer rests on the curve
      if (kind === "dots") {
        points.forEach((point, index) => point && index % 2 === 0 && put(group, "circle", { cx: point[0], cy: point[1], r: 2.6, style: `fill: ${colour}`, class: kind }));
        continue;
      }
      if (kind === "points" || kind === "end") {
        for (const point of points) if (point) put(group, "circle", { cx: point[0].toFixed(1), cy: point[1].toFixed(1), ...(kind === "end" ? { r: 3.2 } : { r: 1.6, "fill-opacity": 0.45 }), style: `fill: ${colour}`, class: kind });
        if (kind === "end" && good(y2) && good(y3)) put(group, "line", { x1: across(ts[0]), x2: across(ts[0]), y1: up(y2), y2: up(y3), ...styled(colour, "line") });
        continue;
      }
      if (kind === "band") {
        const inside = ts.map((_, index) => index).filter((index) => good(ys[index]) && good(y2[index]));
        const corner = (value, index) => `${across(ts[index]).toFixed(1)} ${up(value).toFixed(1)}`;
        const corners = [...inside.map((index) => corner(ys[index], index)), ...inside.reverse().map((index) => corner(y2[index], index))];
        if (corners.length) put(group, "path", { d: `M${corners.join("L")}Z`, class: kind, style: `fill: ${colour}`, "fill-opacity": BAND_OPACITY });
        continue;
      }
      let pen = "M"; // a gap where there is nothing to draw
      const path = points.map((point) => {
        const piece = point ? `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "";
        pen = point ? "L" : "M";
        return piece;
      });
      put(group, "path", { d: path.join(""), fill: "none", class: kind, ...styled(colour, kind) });
    }
    put(svg, "title", {}, description);
  };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const standardError = (values) => {
    if (values.length < 2) return 0;
    const centre = mean(values);
    return Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1) / values.length);
  };
  const digits = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : "undefined");
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  // The mean over the runs that have not diverged, at every save point; null where there are none.
  const meanRisk = (runs, length) =>
    Array.from({ length }, (_, index) => {
      const values = runs.map((run) => run[index]).filter(isNumber);
      return values.length ? mean(values) : null;
    });
  const summary = ({ state: shown, ode, finite, exact }, runs) => {
    const last = exact.t.length - 1;
    const ends = runs.map((run) => run[last]).filter(isNumber);
    // the ODE at the end of the runs; it ends earlier where it diverges
    const index = ode.t.findIndex((t) => t >= exact.t[last] * (1 - 1e-9));
    const at = ends.length && index >= 0 ? index : ode.t.length - 1;
    let text = `At t = ${digits(ode.t[at])} the excess risk of the ODE is ${digits(ode.risk[at])}`;
    if (!ends.length) return `${text}.`;
    const error = standardError(ends);
    text += `, the mean of ${ends.length} exact runs ${digits(mean(ends))} ± ${error.toPrecision(2)}.`;
    const distance = error > 0 ? Math.abs(mean(ends) - ode.risk[at]) / error : 0;
    if (distance > DISAGREEMENT) {
      text += ` They are ${distance.toFixed(0)} standard errors apart: at d = ${shown.dimension} fluctuations of the runs matter,`;
      text += ` which neither ODE has (with the mean step at this d it gives ${digits(finite.risk[at])}). The gap closes as d grows.`;
    }
    return text;
  };
  const draw = (curves) => {
    const { ode, finite, exact, state: shown } = curves;
    const runs = exact.t.length > 1 ? exact.risk : [];
    const risks = runs.map((y, index) => ({ x: exact.t, y, colour: RUN_COLOUR, kind: "faint", name: `exact run ${index + 1}` }));
    if (runs.length) risks.push({ x: exact.t, y: meanRisk(runs, exact.t.length), colour: MEAN_COLOUR, kind: "mean", name: "mean of the exact runs" });
    risks.push({ x: finite.t, y: finite.risk, colour: "currentColor", kind: "dotted", name: `ODE with the exact mean step at d = ${shown.dimension}` });
    risks.push({ x: ode.t, y: ode.risk, colour: "currentColor", kind: "line", name: "ODE of d → ∞" });
    const text = summary(curves, runs);
    byId("said").textContent = text;
    const legend = [
      ["currentColor", "line", "ODE, d → ∞"],
      ["currentColor", "dotted", `ODE, d = ${shown.dimension}`],
      [RUN_COLOUR, "faint", `exact runs, d = ${shown.dimension}`],
      [MEAN_COLOUR, "mean", "their mean"],
    ];
    panel(byId("risk"), risks, legend, true, text);
    const units = ode.M.length / 2;
    const colour = (index) => UNIT_COLOURS[(index % units) % UNIT_COLOURS.length];
    const name = (index) => `unit ${(index % units) + 1}, teacher unit ${index < units ? 1 : 2}`;
    const stroke = (index) => (index < units ? "line" : "dashed");
    const overlaps = ode.M.map((y, index) => ({ x: ode.t, y, colour: colour(index), kind: stroke(index), name: name(index) }));
    if (runs.length) overlaps.push(...exact.M.map((y, index) => ({ x: exact.t, y, colour: colour(index), kind: "dots", name: `${name(index)}, mean of the runs` })));
    const which = [
      ["currentColor", "line", "first teacher unit"],
      ["currentColor", "dashed", "second"],
      ["currentColor", "dots", "mean of runs"],
      ...Array.from({ length: units }, (_, unit) => [colour(unit), "line", `unit ${unit + 1}`]),
    ];
    panel(byId("overlaps"), overlaps, which, false, "Overlaps of each student unit (colour) with the two teacher units by the ODE; dots are means of the exact runs.");
  };

  // The panel of forecasts (forecast.js) draws in the same way.
  window.SGDYNAMICS_DRAWING = { panel, page, DEBOUNCE, UNIT_COLOURS, MEAN_COLOUR };

  const begin = async () => {
    settings = static_ || (await (await fetch("settings")).json());
    for (const program of settings.compiled || []) compiled.add(program);
    state = fromAddress();
    build();
    update();
  };
  begin().catch((error) => say(`The page could not start: ${error.message}`, true));
})();
