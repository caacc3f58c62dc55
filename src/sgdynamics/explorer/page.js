// The explorer's page. With a server it asks for settings, curves and files; without one (in the documentation) it finds all of them in
// window.SGDYNAMICS_EXPLORER. The state is what follows the # of the address.
(() => {
  "use strict";
  const static_ = window.SGDYNAMICS_EXPLORER || null;
  const byId = (name) => document.getElementById(`explorer-${name}`);
  const COLOURS = ["#0072b2", "#d55e00"]; // of the two teacher units; colour-blind readers tell them apart
  const RUNS = "#d55e00";
  const DEBOUNCE = 120; // milliseconds without a move before anything is asked for
  const page = Math.random().toString(36).slice(2);
  let settings, state, drawn, timer, asking;
  let number = 0;
  const compiled = new Set();

  // --- the state and its address
  const address = (one) => Object.keys(one).map((name) => `${name}=${encodeURIComponent(one[name])}`).join("&");
  const fromAddress = () => {
    const found = { ...settings.first };
    for (const name in found) if (!settings.sliders[name].includes(found[name])) found[name] = settings.sliders[name][0];
    for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
      // what is not a number, or not a name, goes to the server as it is, which says what is wrong
      found[name] = typeof settings.first[name] === "number" && text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    return found;
  };
  const nearest = (values, value) => {
    if (typeof value !== "number") return Math.max(values.indexOf(value), 0);
    return values.reduce((best, one, index) => (Math.abs(one - value) < Math.abs(values[best] - value) ? index : best), 0);
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
    asking?.abort(); // what was asked for before is not wanted any more
    number += 1;
    if (static_) look();
    else timer = setTimeout(ask, DEBOUNCE, number);
  };
  const look = () => {
    const found = static_.curves[address(state)];
    if (found) return settle(found);
    for (const name in settings.sliders) {
      if (settings.sliders[name].includes(state[name])) continue;
      return say(`${name} = ${state[name]}: this page has only ${settings.sliders[name].join(", ")}; sgdynamics explore computes any.`, true);
    }
    say("This page does not have this state: sgdynamics explore computes it.", true);
  };
  const ask = async (mine) => {
    const program = `${state.width} ${state.activation}`;
    const began = performance.now();
    say(compiled.has(program) ? "Computing …" : `Compiling for width ${state.width} and ${state.activation}: ten seconds or so, once.`);
    busy(true);
    asking = new AbortController();
    try {
      const answer = await fetch(`curves?page=${page}&number=${mine}&${address(state)}`, { signal: asking.signal });
      const found = await answer.json();
      if (mine !== number) return; // a newer one is on its way
      if (!answer.ok) return say(found.error, true);
      compiled.add(program);
      settle(found, (performance.now() - began) / 1000);
    } catch (error) {
      if (mine !== number || error.name === "AbortError") return;
      say("No answer: has `sgdynamics explore` ended? Start it again, and load this page anew.", true);
    } finally {
      if (mine === number) busy(false);
    }
  };
  const settle = (found, seconds) => {
    drawn = found;
    draw(found);
    say([seconds === undefined ? "Computed when these pages were built." : `Computed in ${seconds.toFixed(2)} s.`, ...found.notes].join(" "));
  };

  // --- drawing
  const SVG = "http://www.w3.org/2000/svg";
  const put = (parent, tag, attributes, text) => {
    const one = document.createElementNS(SVG, tag);
    for (const name in attributes) one.setAttribute(name, attributes[name]);
    if (text !== undefined) one.textContent = text;
    parent.append(one);
    return one;
  };
  const short = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4) ? value.toExponential(0) : String(Number(value.toPrecision(3))));
  const linearTicks = (low, high, most) => {
    const raw = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
    const ticks = [];
    for (let one = Math.ceil(low / step) * step; one <= high + step * 1e-9; one += step) ticks.push(Math.abs(one) < step * 1e-9 ? 0 : one);
    return ticks;
  };
  const logTicks = (low, high) => {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const leap = Math.max(1, Math.ceil((last - first) / 6));
    const digits = last - first <= 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first; power <= last; power += leap) for (const digit of digits) ticks.push(digit * 10 ** power);
    return ticks.filter((one) => one >= low * 0.999 && one <= high * 1.001);
  };
  // series: {x, y, colour, kind: "line" or "faint" or "dots"}; legend: [colour, kind, words]
  const panel = (svg, series, legend, log, words) => {
    svg.replaceChildren();
    const { width, height } = svg.getBoundingClientRect();
    const box = { left: 52, right: width - 18, top: 26, bottom: height - 38 };
    const good = (value) => typeof value === "number" && Number.isFinite(value) && (!log || value > 0);
    const all = series.flatMap((one) => one.y.filter(good));
    const times = series.flatMap((one) => one.x);
    if (!all.length || width < 100) return;
    let [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    if (log) [low, high] = [low / 1.3, high * 1.3];
    else [low, high] = [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
    const end = Math.max(...times) || 1;
    const across = (t) => box.left + (t / end) * (box.right - box.left);
    const scaled = log ? Math.log : (value) => value;
    const up = (value) => box.bottom - ((scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (box.bottom - box.top);
    for (const value of log ? logTicks(low, high) : linearTicks(low, high, 6)) {
      put(svg, "line", { x1: box.left, x2: box.right, y1: up(value), y2: up(value), stroke: "currentColor", "stroke-opacity": 0.12 });
      put(svg, "text", { x: box.left - 6, y: up(value) + 4, "text-anchor": "end" }, short(value));
    }
    for (const value of linearTicks(0, end, width > 420 ? 6 : 4)) {
      put(svg, "line", { x1: across(value), x2: across(value), y1: box.bottom, y2: box.bottom + 4, stroke: "currentColor" });
      put(svg, "text", { x: across(value), y: box.bottom + 18, "text-anchor": "middle" }, short(value));
    }
    put(svg, "rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "none", stroke: "currentColor", "stroke-opacity": 0.5 });
    put(svg, "text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, "t = lr steps / d");
    for (const { x, y, colour, kind } of series) {
      const points = x.map((t, index) => (good(y[index]) ? [across(t), up(y[index])] : null));
      if (kind === "dots") {
        points.forEach((point, index) => point && index % 2 === 0 && put(svg, "circle", { cx: point[0], cy: point[1], r: 2.6, fill: colour, class: kind }));
        continue;
      }
      let pen = "M"; // a gap where there is nothing to draw
      const path = points.map((point) => {
        const piece = point ? `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "";
        pen = point ? "L" : "M";
        return piece;
      });
      const style = kind === "faint" ? { "stroke-width": 1, "stroke-opacity": 0.45 } : { "stroke-width": 2 };
      put(svg, "path", { d: path.join(""), fill: "none", stroke: colour, class: kind, ...style });
    }
    let place = box.left;
    for (const [colour, kind, name] of legend) {
      if (kind === "dots") put(svg, "circle", { cx: place + 9, cy: 12, r: 2.6, fill: colour });
      else put(svg, "line", { x1: place, x2: place + 18, y1: 12, y2: 12, stroke: colour, "stroke-width": kind === "faint" ? 1 : 2 });
      place += 30 + put(svg, "text", { x: place + 22, y: 16 }, name).getComputedTextLength();
    }
    put(svg, "title", {}, words);
  };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const draw = (found) => {
    const { ode, exact } = found;
    const runs = exact.t.length > 1 ? exact.risk : [];
    const risks = [
      ...runs.map((y) => ({ x: exact.t, y, colour: RUNS, kind: "faint" })),
      { x: ode.t, y: ode.risk, colour: "currentColor", kind: "line" },
    ];
    const last = exact.t.length - 1;
    const ends = runs.map((one) => one[last]).filter((one) => typeof one === "number");
    const spread = ends.length > 1 ? Math.sqrt(ends.reduce((sum, one) => sum + (one - mean(ends)) ** 2, 0) / (ends.length - 1) / ends.length) : 0;
    const place = ode.t.findIndex((t) => t >= exact.t[last] * (1 - 1e-9));
    const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : "none");
    const words = ends.length
      ? `At t = ${number(ode.t[place])} the excess risk of the ODE is ${number(ode.risk[place])}, the mean of ${ends.length} exact runs ${number(mean(ends))} ± ${spread.toPrecision(2)}.`
      : `At t = ${number(ode.t.at(-1))} the excess risk of the ODE is ${number(ode.risk.at(-1))}.`;
    byId("said").textContent = words;
    const legend = [["currentColor", "line", "ODE, d → ∞"], [RUNS, "faint", `exact runs, d = ${found.state.dimension}`]];
    panel(byId("risk"), risks, legend, true, words);
    const teacher = (index) => COLOURS[Math.floor((2 * index) / ode.M.length)];
    const overlaps = ode.M.map((y, index) => ({ x: ode.t, y, colour: teacher(index), kind: "line" }));
    if (runs.length) overlaps.push(...exact.M.map((y, index) => ({ x: exact.t, y, colour: teacher(index), kind: "dots" })));
    const which = [[COLOURS[0], "line", "first"], [COLOURS[1], "line", "second"], ["currentColor", "dots", "mean of runs"]];
    panel(byId("overlaps"), overlaps, which, false, "A line for each student unit and teacher unit, by the ODE; dots are the mean of the exact runs.");
  };

  const begin = async () => {
    settings = static_ || (await (await fetch("settings")).json());
    for (const one of settings.compiled || []) compiled.add(one);
    state = fromAddress();
    build();
    update();
  };
  begin().catch((error) => say(`The page could not start: ${error.message}`, true));
})();
