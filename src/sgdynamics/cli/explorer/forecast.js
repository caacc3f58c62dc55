// The panel of forecasts: loss curves of CSV files and a schedule go to the server, which answers with the fit and the
// prediction. An empty field stands for the measured value, which the field then shows in grey.
(() => {
  "use strict";
  const { panel, page, DEBOUNCE, UNIT_COLOURS, MEAN_COLOUR } = window.SGDYNAMICS_DRAWING;
  const MAX_BYTES = 4_000_000; // the limit of the server for a request
  const MAX_LEGEND = 6; // curves with a name in the legend
  const LONGEST_NAME = 24; // characters of a name in the legend
  const byId = (name) => document.getElementById(`forecast-${name}`);
  const TEXT_FIELDS = ["peak", "steps", "warmup"];
  const SLIDERS = ["decay", "final"];
  const FIELDS = ["schedule", "shape", ...TEXT_FIELDS, ...SLIDERS];
  // The fields that a schedule does not have.
  const UNUSED = { wsd: [], cosine: ["decay", "shape"], constant: ["decay", "shape", "final"] };
  // Colours of measured curves; the others are those of the best schedule.
  const CURVE_COLOURS = UNIT_COLOURS.filter((colour) => colour !== "#d55e00");
  let files = new Map(); // text by name, in the order in which they were loaded
  let drawn, timer, request;
  let number = 0;

  const say = (text, wrong = false) => {
    byId("status").textContent = text;
    byId("status").classList.toggle("wrong", wrong);
  };
  const busy = (yes) => byId("panels").classList.toggle("busy", yes);
  const wantsBest = () => byId("best").getAttribute("aria-pressed") === "true";

  // --- files
  const add = async (list) => {
    const chosen = [...list];
    if (!chosen.length) return;
    const bytes = chosen.reduce((sum, file) => sum + file.size, 0);
    if (bytes > MAX_BYTES) return say(tooLarge(bytes), true);
    try {
      const texts = await Promise.all(chosen.map((file) => file.text()));
      chosen.forEach((file, index) => files.set(file.name, texts[index]));
    } catch (error) {
      return say(`A file cannot be read: ${error.message}`, true);
    }
    loaded();
  };
  const tooLarge = (bytes) => `The files have ${(bytes / 1e6).toFixed(1)} MB: the limit is ${MAX_BYTES / 1e6} MB. Use fewer rows.`;
  const loaded = () => {
    byId("names").replaceChildren(
      ...[...files.keys()].map((name) => {
        const entry = document.createElement("li");
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
        button.setAttribute("aria-label", `Remove ${name}`);
        button.addEventListener("click", () => {
          files.delete(name);
          loaded();
        });
        entry.append(name, button);
        return entry;
      }),
    );
    byId("result").hidden = !files.size;
    update();
  };

  // --- fields
  const show = () => {
    for (const name of SLIDERS) byId(name).parentElement.querySelector("output").textContent = byId(name).value;
    for (const name of FIELDS) byId(name).parentElement.hidden = UNUSED[byId("schedule").value].includes(name);
  };
  const content = (best) => {
    const values = { files: [...files].map(([name, text]) => ({ name, text })), best };
    for (const name of ["schedule", "shape"]) values[name] = byId(name).value;
    for (const name of SLIDERS) values[name] = Number(byId(name).value);
    for (const name of TEXT_FIELDS) {
      const text = byId(name).value.trim();
      // the server names what is wrong with text that is not a number
      if (text) values[name] = Number.isFinite(Number(text)) ? Number(text) : text;
    }
    return JSON.stringify(values);
  };

  // --- requests
  const update = () => {
    show();
    clearTimeout(timer);
    request?.abort(); // the earlier schedule is no longer of interest
    number += 1;
    busy(false);
    if (files.size) {
      timer = setTimeout(ask, DEBOUNCE, number);
      return;
    }
    drawn = null;
    byId("panels").hidden = true;
    byId("said").textContent = "";
    say("");
  };
  const ask = async (mine) => {
    const began = performance.now();
    request = new AbortController();
    busy(true);
    try {
      // The best schedule takes longer: the prediction is drawn first.
      for (const best of wantsBest() ? [false, true] : [false]) {
        // the server computes one request after the other
        const waits = document.querySelector(".explorer-panels").classList.contains("busy");
        say(`${waits ? "Waiting for the curves above …" : ""} ${best ? "Searching the best schedule …" : "Fitting …"}`.trim());
        const body = content(best);
        const bytes = new Blob([body]).size;
        if (bytes > MAX_BYTES) return say(tooLarge(bytes), true);
        const answer = await fetch(`forecast?page=${page}forecast&number=${mine}`, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body,
          signal: request.signal,
        });
        const forecast = await answer.json();
        if (mine !== number) return; // a newer request is on its way
        if (!answer.ok) return say(forecast.error, true);
        accept(forecast);
        const seconds = ((performance.now() - began) / 1000).toFixed(2);
        say([`Computed in ${seconds} s.`, ...forecast.notes].join(" "));
      }
    } catch (error) {
      if (mine !== number || error.name === "AbortError") return;
      say("No answer: has `sgdynamics explore` ended? Start it again, and load this page anew.", true);
    } finally {
      if (mine === number) busy(false);
    }
  };
  const accept = (forecast) => {
    drawn = forecast;
    byId("panels").hidden = false;
    for (const name of TEXT_FIELDS) byId(name).placeholder = String(forecast.run[name]);
    draw(forecast);
  };

  // --- drawing
  const steps = (value) => {
    if (value >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
    return value >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k` : String(Number(value.toPrecision(4)));
  };
  const loss = (value) => value.toPrecision(4);
  const last = (values) => values[values.length - 1];
  const clipped = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);
  const share = (level) => `${Number((100 * level).toPrecision(3))}% band`;
  const finalLoss = ({ loss: values, lower, upper }, level) => {
    const band = last(lower) === null ? "without a band" : `${share(level)} ${loss(last(lower))} to ${loss(last(upper))}`;
    return `${loss(last(values))} (${band})`;
  };
  const summary = ({ curves, prediction, best, level, model, residual }) => {
    const curve = curves.length > 1 ? `${curves.length} curves` : "one curve";
    let text = `Predicted final loss at step ${last(prediction.step)}: ${finalLoss(prediction, level)}.`;
    if (best) {
      const [gain, lower, upper] = best.gain.map((value) => value?.toFixed(4));
      const band = lower && upper ? ` (${lower} to ${upper})` : "";
      text += ` Best schedule: ${finalLoss(best, level)}, its decay starts at ${Math.round(100 * best.decay_start)}% of the run,`;
      text += ` gain over a cosine that ends at 0: ${gain}${band}. ${best.optimism}`;
    }
    return `${text} Model: ${model}, fitted to ${curve} with a mean error of ${residual.toPrecision(2)}.`;
  };
  // Losses from the smallest one to the 80% quantile of the measured ones: the start of a run would hide the end.
  const lossRange = ({ curves, prediction, best }) => {
    const measured = curves.flatMap((curve) => curve.loss).sort((a, b) => a - b);
    const ends = [prediction, best].filter(Boolean).flatMap((run) => [...run.loss, ...run.lower].filter((value) => value !== null));
    const low = ends.reduce((a, b) => Math.min(a, b), measured[0]);
    const high = Math.max(measured[Math.floor(0.8 * (measured.length - 1))], last(prediction.upper) ?? last(prediction.loss));
    const margin = 0.08 * (high - low) || 0.1 * high;
    return [low - margin, high + margin];
  };
  const draw = (forecast) => {
    const { curves, prediction, best } = forecast;
    const colour = (index) => CURVE_COLOURS[index % CURVE_COLOURS.length];
    const runs = [[prediction, "currentColor", "dashed", "prediction"]];
    if (best) runs.push([best, MEAN_COLOUR, "line", "best schedule"]);
    const losses = curves.map(({ name, step, loss: y }, index) => ({ x: step, y, colour: colour(index), kind: "points", name: `${name}, measured` }));
    losses.push(...curves.map(({ name, fit_step, fit_loss }, index) => ({ x: fit_step, y: fit_loss, colour: colour(index), kind: "thin", name: `${name}, fit` })));
    const rates = curves.map(({ name, rate_step, rate }, index) => ({ x: rate_step, y: rate, colour: colour(index), kind: "line", name }));
    for (const [{ step, loss: y, lower, upper, rate_step, rate }, stroke, kind, name] of runs) {
      losses.push({ x: step, y: lower, y2: upper, colour: stroke, kind: "band", name: `${name}, ${share(forecast.level)}` });
      losses.push({ x: step, y, colour: stroke, kind, name });
      losses.push({ x: [last(step)], y: [last(y)], y2: last(lower), y3: last(upper), colour: stroke, kind: "end", name: `${name}, final loss` });
      rates.push({ x: rate_step, y: rate, colour: stroke, kind, name });
    }
    const names = curves.length <= MAX_LEGEND ? curves.map(({ name }, index) => [colour(index), "points", clipped(name)]) : [[colour(0), "points", `${curves.length} measured curves`]];
    const strokes = runs.map(([, stroke, kind, name]) => [stroke, kind, name]);
    const text = summary(forecast);
    byId("said").textContent = text;
    const axis = { label: "step", timeText: steps };
    const legend = [...names, ["currentColor", "thin", "fit"], ...strokes];
    if (last(prediction.lower) !== null) legend.push(["currentColor", "band", share(forecast.level)]);
    panel(byId("loss"), losses, legend, false, text, { ...axis, range: lossRange(forecast) });
    const rateNames = names.map(([stroke, , name]) => [stroke, "line", name]);
    panel(byId("rate"), rates, [...rateNames, ...strokes], false, "Learning rates of the measured curves and of the predicted runs.", axis);
  };

  // --- events
  const section = document.getElementById("forecast");
  byId("files").addEventListener("change", () => {
    add(byId("files").files).finally(() => {
      byId("files").value = ""; // the same file can be chosen again
    });
  });
  const isFile = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  for (const kind of ["dragenter", "dragover"]) {
    section.addEventListener(kind, (event) => {
      if (!isFile(event)) return;
      event.preventDefault();
      section.classList.add("dropping");
    });
  }
  section.addEventListener("dragleave", (event) => {
    if (!section.contains(event.relatedTarget)) section.classList.remove("dropping");
  });
  section.addEventListener("drop", (event) => {
    section.classList.remove("dropping");
    if (!isFile(event)) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
  for (const name of FIELDS) byId(name).addEventListener("input", update);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("best").addEventListener("click", () => {
    byId("best").setAttribute("aria-pressed", String(!wantsBest()));
    update();
  });
  new ResizeObserver(() => drawn && draw(drawn)).observe(byId("panels"));
  show();
})();
