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
  const FLOOR_COLOUR = "var(--explorer-floor)";
  const DEBOUNCE = 120; // milliseconds without a move before anything is requested
  const BAND_OPACITY = 0.18;
  const HOVER_REACH = 60; // pixels from the pointer to the curve that it reads
  const DISAGREEMENT = 4; // standard errors between theory and runs that the page explains
  const page = Math.random().toString(36).slice(2);
  let settings, state, drawn, timer, request, clock, floorShown;
  let number = 0;
  const compiled = new Set();
  const programOf = (value) => settings.program.map((name) => value[name]).join(" ");
  // The horizontal axis: a view of the curves, which computes nothing.
  const AXES = {
    t: { label: "t = lr steps / d", factor: () => 1, log: false },
    alpha: { label: "samples / d", factor: ({ batch, lr }) => batch / lr, log: false },
    "log t": { label: "t = lr steps / d", factor: () => 1, log: true },
    "log alpha": { label: "samples / d", factor: ({ batch, lr }) => batch / lr, log: true },
  };
  const axis = () => AXES[byId("axis").value];

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
  const piece = (name, kind) => (name === "method" ? settings.methods[state.optimiser] : settings.pieces[name]?.[state[name]][kind] ?? String(state[name]));
  const filled = (kind) => (settings.templates[kind] || "").replace(/\$(\w+)/g, (_, name) => piece(name, kind));
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
    for (const name of ["pdf", "floor-choice", "equations"]) byId(name).hidden = Boolean(static_);
    byId("axis").addEventListener("input", () => drawn && draw(drawn));
    byId("floor").addEventListener("input", () => (byId("floor").checked ? askForFloor() : drawn && draw(drawn)));
    byId("equations").addEventListener("toggle", showEquations);
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
    clearInterval(clock);
    if (static_) look();
    else timer = setTimeout(ask, DEBOUNCE, number);
  };
  // Seconds pass visibly while the server compiles; the controls remain usable.
  const announce = (what, began) => {
    const words = `Compiling ${what} for ${settings.program.map((name) => `${name} ${state[name]}`).join(", ")}: ten to thirty seconds in all, once.`;
    const tell = () => say(`${words} ${Math.round((performance.now() - began) / 1000)} s so far; states that are compiled already can be looked at meanwhile.`);
    clearInterval(clock);
    tell();
    clock = setInterval(tell, 1000);
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
  // Exact runs come in pieces: each answer has longer runs than the one before, until they are complete. While
  // programs compile, the first answer (no pieces) is the ODE alone.
  const ask = async (mine) => {
    const program = programOf(state);
    const began = performance.now();
    if (compiled.has(program)) say("Computing …");
    else announce("the ODE", began);
    busy(true);
    showEquations();
    request = new AbortController();
    try {
      for (let pieces = compiled.has(program) ? 1 : 0; ; pieces += 1) {
        const answer = await fetch(`curves?page=${page}&number=${mine}&pieces=${pieces}&${address(state)}`, { signal: request.signal });
        const curves = await answer.json();
        if (answer.ok && pieces > 0) compiled.add(program);
        if (mine !== number) return; // a newer request is on its way
        clearInterval(clock);
        if (!answer.ok) return say(curves.error, true);
        accept(curves);
        busy(false);
        if (pieces === 0) {
          announce("the runs", began);
          continue;
        }
        const seconds = ((performance.now() - began) / 1000).toFixed(2);
        if (curves.complete) {
          say([`Computed in ${seconds} s.`, ...curves.notes].join(" "));
          return askForFloor();
        }
        say([`The runs have reached t = ${short(curves.exact.t.at(-1))} …`, ...curves.notes].join(" "));
      }
    } catch (error) {
      if (mine !== number || error.name === "AbortError") return;
      clearInterval(clock);
      say("No answer: has `sgdynamics explore` ended? Start it again, and load this page anew.", true);
    } finally {
      if (mine === number) busy(false);
    }
  };
  // The least risk that any learner reaches, where the box is ticked.
  const askForFloor = async () => {
    if (static_ || !byId("floor").checked || floorShown?.address === address(state)) return;
    const [mine, wanted, told] = [number, address(state), byId("status").textContent];
    say(`${told} Computing the Bayes-optimal risk, which can take a minute …`);
    const answer = await fetch(`floor?page=${page}floor&number=${mine}&${wanted}`);
    const floor = await answer.json();
    if (wanted !== address(state)) return; // the state has moved on
    floorShown = { address: wanted, ...floor };
    say(answer.ok ? told : `${told} Floor: ${floor.error}`);
    if (drawn) draw(drawn);
  };
  const showEquations = async () => {
    if (static_ || !byId("equations").open) return;
    const wanted = address(state);
    const answer = await fetch(`equations?${wanted}`);
    const equations = await answer.json();
    if (wanted !== address(state)) return;
    const body = byId("formulas");
    if (!answer.ok) {
      body.textContent = equations.error;
      return;
    }
    body.replaceChildren(
      ...equations.sections.flatMap(({ heading, formulas }) => {
        const title = Object.assign(document.createElement("h3"), { textContent: heading });
        const box = document.createElement("div");
        box.className = "explorer-formulas";
        box.innerHTML = formulas.join(""); // MathML of this server
        return [title, box];
      }),
    );
    byId("latex").textContent = equations.latex;
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
  const panel = (svg, series, legend, log, description, { label = "t = lr steps / d", timeText = short, range = null, logX = false } = {}) => {
    svg.replaceChildren();
    const { width, height } = svg.getBoundingClientRect();
    const box = { left: 52, right: width - 18, top: 26, bottom: height - 38 };
    const good = (value) => typeof value === "number" && Number.isFinite(value) && (!log || value > 0);
    const all = series.flatMap((curve) => curve.y.filter(good));
    const times = series.flatMap((curve) => curve.x).filter((t) => !logX || t > 0);
    if (!all.length || width < 100) return;
    let [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    if (range) [low, high] = range;
    else if (log) [low, high] = [low / 1.3, high * 1.3];
    else [low, high] = [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
    const end = times.reduce((a, b) => Math.max(a, b), 0) || 1;
    const begin = logX ? times.reduce((a, b) => Math.min(a, b), end) : 0;
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
    const share = (t) => (logX ? Math.log(t / begin) / (Math.log(end / begin) || 1) : t / end);
    const across = (t) => box.left + share(t) * (box.right - box.left);
    const scaled = log ? Math.log : (value) => value;
    const up = (value) => box.bottom - ((scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (box.bottom - box.top);
    for (const value of log ? logTicks(low, high) : linearTicks(low, high, 6)) {
      put(svg, "line", { x1: box.left, x2: box.right, y1: up(value), y2: up(value), stroke: "currentColor", "stroke-opacity": 0.12 });
      put(svg, "text", { x: box.left - 6, y: up(value) + 4, "text-anchor": "end" }, short(value));
    }
    for (const value of logX ? logTicks(begin, end) : linearTicks(0, end, width > 420 ? 6 : 4)) {
      put(svg, "line", { x1: across(value), x2: across(value), y1: box.bottom, y2: box.bottom + 4, stroke: "currentColor" });
      put(svg, "text", { x: across(value), y: box.bottom + 18, "text-anchor": "middle" }, timeText(value));
    }
    put(svg, "rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "none", stroke: "currentColor", "stroke-opacity": 0.5 });
    put(svg, "text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, label);
    const targets = []; // what the pointer can read
    const curves = range ? put(svg, "g", { "clip-path": `url(#${svg.id}-clip)` }) : svg;
    if (range) {
      const clip = put(svg, "clipPath", { id: `${svg.id}-clip` });
      put(clip, "rect", { x: box.left, y: box.top, width: width - box.left, height: box.bottom - box.top });
    }
    for (const { x: ts, y: ys, y2, y3, colour, kind, name } of series) {
      const points = ts.map((t, index) => (good(ys[index]) && t >= begin ? [across(t), up(ys[index])] : null));
      if (name && kind !== "band") targets.push({ name, colour, ts, ys, points });
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
        const inside = ts.map((_, index) => index).filter((index) => good(ys[index]) && good(y2[index]) && ts[index] >= begin);
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
    svg.setAttribute("aria-description", description);
    hover(svg, targets, box, (t) => `${label.split(" = ")[0]} = ${timeText(t)}`);
  };
  // The point of a curve that is next to the pointer, with its name and values.
  const hover = (svg, targets, box, timeOf) => {
    const mark = put(svg, "g", { class: "explorer-hover", "pointer-events": "none" });
    const leave = () => mark.replaceChildren();
    svg.onpointerleave = leave;
    svg.onpointermove = (event) => {
      leave();
      const { left, top } = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      let best = null;
      for (const { name, colour, ts, ys, points } of targets) {
        points.forEach((point, index) => {
          if (!point) return;
          const distance = Math.hypot(point[0] - x, 1.5 * (point[1] - y));
          if (!best || distance < best.distance) best = { distance, point, name, colour, t: ts[index], y: ys[index] };
        });
      }
      if (!best || best.distance > HOVER_REACH) return;
      put(mark, "circle", { cx: best.point[0], cy: best.point[1], r: 4, fill: "none", "stroke-width": 2, style: `stroke: ${best.colour}` });
      const lines = [best.name, `${timeOf(best.t)}: ${short(best.y)}`];
      const texts = lines.map((line, index) => put(mark, "text", { x: 0, y: 14 + 16 * index }, line));
      const length = Math.max(...texts.map((text) => text.getComputedTextLength()));
      const at = [Math.max(2, Math.min(best.point[0] + 10, box.right - length - 12)), Math.max(2, best.point[1] - 48)];
      const plate = put(mark, "rect", { x: at[0], y: at[1], width: length + 12, height: 38, rx: 4, class: "explorer-plate" });
      mark.prepend(plate);
      texts.forEach((text, index) => {
        text.setAttribute("x", at[0] + 6);
        text.setAttribute("y", at[1] + 15 + 16 * index);
      });
    };
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
    text += `, the mean of ${ends.length} runs ${digits(mean(ends))} ± ${error.toPrecision(2)}.`;
    const distance = error > 0 ? Math.abs(mean(ends) - ode.risk[at]) / error : 0;
    if (distance > DISAGREEMENT) {
      text += ` They are ${distance.toFixed(0)} standard errors apart: at d = ${shown.dimension} fluctuations of the runs matter,`;
      text += finite ? ` which neither ODE has (with the mean step at this d it gives ${digits(finite.risk[at])}).` : " which the ODE has not.";
      text += " The gap closes as d grows.";
    }
    return text;
  };
  const draw = (curves) => {
    const { ode, finite, exact, state: shown } = curves;
    const { label, factor, log: logX } = axis();
    const scale = factor(shown);
    const times = (ts) => ts.map((t) => t * scale);
    const kindOfRuns = `${settings.methods[shown.optimiser]} run`;
    const runs = exact.t.length > 1 ? exact.risk : [];
    const risks = runs.map((y, index) => ({ x: times(exact.t), y, colour: RUN_COLOUR, kind: "faint", name: `${kindOfRuns} ${index + 1}` }));
    if (runs.length) risks.push({ x: times(exact.t), y: meanRisk(runs, exact.t.length), colour: MEAN_COLOUR, kind: "mean", name: `mean of the ${kindOfRuns}s` });
    if (finite) risks.push({ x: times(finite.t), y: finite.risk, colour: "currentColor", kind: "dotted", name: `ODE with the exact mean step at d = ${shown.dimension}` });
    risks.push({ x: times(ode.t), y: ode.risk, colour: "currentColor", kind: "line", name: "ODE of d → ∞" });
    const text = summary(curves, runs);
    byId("said").textContent = text;
    const legend = [
      ["currentColor", "line", "ODE, d → ∞"],
      ...(finite ? [["currentColor", "dotted", `ODE, d = ${shown.dimension}`]] : []),
      ...(runs.length ? [[RUN_COLOUR, "faint", `${kindOfRuns}s, d = ${shown.dimension}`], [MEAN_COLOUR, "mean", "their mean"]] : []),
    ];
    if (byId("floor").checked && floorShown?.risk && floorShown.address === address(state)) {
      const x = floorShown.alpha.map((alpha) => ((alpha * shown.lr) / shown.batch) * scale);
      risks.push({ x, y: floorShown.risk, colour: FLOOR_COLOUR, kind: "dashed", name: "Bayes-optimal: no learner is better on as many samples" });
      legend.push([FLOOR_COLOUR, "dashed", "Bayes-optimal"]);
    }
    panel(byId("risk"), risks, legend, true, text, { label, logX });
    const units = ode.M.length / 2;
    const colour = (index) => UNIT_COLOURS[(index % units) % UNIT_COLOURS.length];
    const name = (index) => `unit ${(index % units) + 1}, teacher unit ${index < units ? 1 : 2}`;
    const stroke = (index) => (index < units ? "line" : "dashed");
    const overlaps = ode.M.map((y, index) => ({ x: times(ode.t), y, colour: colour(index), kind: stroke(index), name: name(index) }));
    if (runs.length) overlaps.push(...exact.M.map((y, index) => ({ x: times(exact.t), y, colour: colour(index), kind: "dots", name: `${name(index)}, mean of the runs` })));
    const which = [
      ["currentColor", "line", "first teacher unit"],
      ["currentColor", "dashed", "second"],
      ...(runs.length ? [["currentColor", "dots", "mean of runs"]] : []),
      ...Array.from({ length: units }, (_, unit) => [colour(unit), "line", `unit ${unit + 1}`]),
    ];
    const words = "Overlaps of each student unit (colour) with the two teacher units by the ODE; dots are means of the runs.";
    panel(byId("overlaps"), overlaps, which, false, words, { label, logX });
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
