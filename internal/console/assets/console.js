// What the pages do by themselves: ages that go on, copying, dialogs, and keys.
// All else is links and forms, which htmx swaps in.
(() => {
  "use strict";

  const two = (s, large, name, small, smallName) => {
    const rest = Math.floor((s % large) / small);
    return Math.floor(s / large) + " " + name + (rest > 0 ? " " + rest + " " + smallName : "");
  };
  // The same words as duration() in render.go, from one second on.
  const duration = (s) => {
    if (s < 60) return Math.max(0, Math.floor(s)) + " s";
    if (s < 3600) return two(s, 60, "min", 1, "s");
    if (s < 48 * 3600) return two(s, 3600, "h", 60, "min");
    return two(s, 86400, "d", 3600, "h");
  };
  // The same words as said() in render.go.
  const words = {
    since: (s) => duration(s),
    until: (s) => (s <= 0 ? "now" : duration(s)),
    ago: (s) => (s > -1 && s < 1 ? "just now" : s > 0 ? duration(s) + " ago" : "in " + duration(-s)),
    in: (s) => (s <= 0 ? "now" : "in " + duration(s)),
    within: (s) => (s <= 0 ? "now" : "within " + duration(s)),
  };
  // The server's clock counts: the browser's may be wrong.
  let ahead = 0;
  const tick = () => {
    const now = Date.now() - ahead;
    for (const time of document.querySelectorAll("time[class]")) {
      const at = Date.parse(time.dateTime);
      const left = (time.className === "since" || time.className === "ago" ? now - at : at - now) / 1000;
      const text = words[time.className](left);
      if (time.textContent !== text) time.textContent = text;
    }
  };
  const live = (text, bad) => {
    const sign = document.getElementById("live");
    if (!sign || sign.textContent === text) return; // A screen reader would read the same text again.
    sign.textContent = text;
    sign.classList.toggle("bad", bad);
    document.getElementById("main").classList.toggle("old", bad);
  };

  const dialog = () => document.getElementById("dialog");
  const make = (name, text, more) => Object.assign(document.createElement(name), { textContent: text }, more);
  const open = () => {
    dialog().setAttribute("aria-label", dialog().querySelector("h1")?.textContent ?? "No answer");
    if (!dialog().open) dialog().showModal();
  };
  const show = (...content) => {
    dialog().replaceChildren(...content, make("button", "Close", { type: "button", className: "close" }));
    open();
  };
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog()) open();
    tick();
    drawCharts();
  });
  // Says where the form is, or else in a dialog, that a request was not answered.
  const unanswered = (by) => {
    const form = by.closest("form.action");
    const said = make("p", form
      ? "The server did not answer: it may or may not have done this. Look before you send it again."
      : "The server did not answer. Try again.", { className: "fault" });
    said.setAttribute("role", "alert");
    if (form) form.querySelector(".refused").replaceChildren(said);
    else show(said);
  };
  document.addEventListener("htmx:sendError", (event) => unanswered(event.target));
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, requestConfig } = event.detail;
    if (!xhr || xhr.status < 400) return;
    // A refusal of the server is shown; a proxy's own page, which has no such policy, is none.
    const own = xhr.getResponseHeader("Content-Security-Policy") !== null;
    event.detail.shouldSwap = own;
    event.detail.isError = false;
    if (!own) unanswered(requestConfig.elt);
  });
  const clock = (at) => new Date(at).toISOString().slice(11, 19) + " UTC";
  // The server says since when it cannot render the page, and nothing when it can again.
  const stale = (event) => {
    if (event.data) live("not current since " + clock(event.data), true);
    else live("live", false);
  };
  // What is pressed is not replaced: between press and release a page keeps its content, and its
  // newest rendering waits. The click comes after the release.
  let pressed = false;
  let waiting = null;
  const unlessPressed = (listener) => (event) => {
    if (pressed) waiting = () => listener(event);
    else listener(event);
  };
  document.addEventListener("pointerdown", () => { pressed = true; }, true);
  const released = () => setTimeout(() => {
    pressed = false;
    waiting?.();
    waiting = null;
  });
  // A context menu keeps the release for itself.
  for (const end of ["pointerup", "pointercancel", "dragend", "contextmenu"]) window.addEventListener(end, released, true);
  window.addEventListener("blur", released); // Not of an element, which loses the focus to what is pressed.
  window.addEventListener("pointermove", (event) => { if (pressed && event.buttons === 0) released(); }, true);
  // What had the focus may be gone from the new rendering, as the link of a count that is 0 now, or
  // may have lost it to a move. The focus goes on to the first link that takes it in what is left
  // around it, at the end to the page.
  const holdingFocus = (listener) => (event) => {
    const around = [];
    for (let at = document.activeElement; at; at = at.parentElement) around.push(at);
    listener(event);
    const main = document.getElementById("main");
    if (!around.includes(main) || document.activeElement !== document.body) return;
    const takes = (at) => {
      at.focus({ preventScroll: true });
      return document.activeElement === at;
    };
    // Not each link does: one may be hidden, as in details that are closed.
    if (!takes(around[0]) && !around.some((at) => main.contains(at) && [...at.querySelectorAll("a[href]")].some(takes))) takes(main);
  };
  // A view is the new lines of the page, and between them ranges of those that stay.
  let lines = [];
  const whole = (parts) => {
    lines = JSON.parse(parts).flatMap((part) => typeof part === "string" ? [part] : lines.slice(...part));
    return lines.join("\n");
  };
  // A page that is not seen has no stream: with HTTP/1 a browser opens six connections to a
  // server, and as many tabs would keep it from loading anything else.
  const stream = (url) => {
    const listeners = new Map(); // with the names of their events, and what is called for them
    let source = null;
    let ended = false;
    const turn = () => {
      if (document.hidden) {
        source?.close();
        source = null;
      } else if (!source) {
        source = new EventSource(url);
        source.onopen = (event) => seen.onopen(event);
        source.onerror = (event) => {
          if (event.target.readyState === EventSource.CLOSED) seen.close(); // htmx begins another one.
          seen.onerror(event);
        };
        for (const [name, held] of listeners.values()) source.addEventListener(name, held);
      }
    };
    const seen = {
      get readyState() { return ended ? EventSource.CLOSED : source?.readyState ?? EventSource.CONNECTING; },
      addEventListener: (name, listener) => {
        const swap = unlessPressed(holdingFocus(listener));
        const held = name === "view" ? (event) => swap({ data: whole(event.data) }) : listener;
        listeners.set(listener, [name, held]);
        source?.addEventListener(name, held);
      },
      removeEventListener: (name, listener) => {
        const [, held] = listeners.get(listener) ?? [];
        listeners.delete(listener);
        source?.removeEventListener(name, held);
      },
      close: () => {
        ended = true;
        document.removeEventListener("visibilitychange", turn);
        source?.close();
      },
    };
    document.addEventListener("visibilitychange", turn);
    turn();
    return seen;
  };
  if (window.htmx) window.htmx.createEventSource = stream;
  let lost = 0; // When the connection was lost, 0 while there is one.
  document.addEventListener("htmx:sseOpen", (event) => {
    lost = 0;
    live("live", false);
    event.detail.source.addEventListener("stale", stale);
  });
  document.addEventListener("htmx:sseError", () => {
    lost ||= Date.now() - ahead;
    live("not connected since " + clock(lost), true);
  });
  // What has ended changes no more.
  document.addEventListener("htmx:sseClose", (event) => {
    if (event.detail.type === "message") document.getElementById("live")?.remove();
  });

  // Copies the text. A browser has its clipboard only over TLS, or on the same machine; where
  // nothing can copy, the text is there, selected, until the user goes on.
  const copied = async (button, text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const field = document.createElement("textarea");
      field.value = text;
      field.readOnly = true;
      field.setAttribute("aria-label", "Text to copy");
      field.className = "tocopy";
      (button.closest("dialog") ?? document.body).append(field); // A live page would take it away.
      field.select();
      const done = document.execCommand("copy");
      if (done) {
        field.remove();
        button.focus();
      } else {
        field.addEventListener("blur", () => field.remove());
      }
      return done;
    }
  };
  let forget = 0;
  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      event.preventDefault();
      copy.dataset.copied = await copied(copy, copy.dataset.copy) ? "yes" : "no";
      clearTimeout(forget);
      forget = setTimeout(() => { delete copy.dataset.copied; }, 1200);
    } else if (event.target.closest("[data-keys]")) {
      showKeys();
    } else if (event.target.closest("dialog .close")) {
      dialog().close();
    } else if (event.target.closest(".close")) {
      // In a tab of its own, or after the sign-in, a form has no page to go back to.
      const from = document.referrer || "/ui/";
      const signIn = new URL(from, location.href).pathname.startsWith("/ui/sign-in");
      if (history.length > 1 && !signIn) history.back();
      else location.assign(signIn ? "/ui/" : from);
    }
  });
  // The command of a form has what the user enters. It is quoted as by quoted() in actions.go.
  const quoted = (word) => {
    if (/\p{Cc}/u.test(word)) {
      const escaped = Array.from(new TextEncoder().encode(word), (c) =>
        c < 0x20 || c > 0x7e || c === 0x27 || c === 0x5c ? "\\x" + c.toString(16).padStart(2, "0") : String.fromCharCode(c));
      return "$'" + escaped.join("") + "'";
    }
    return /^[\p{L}\p{Nd}_.:/,@-]+$/u.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
  };
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form.action");
    const copy = form && form.querySelector(".command [data-copy]");
    if (!copy) return;
    if (event.target.matches("[data-flag]:not([name=reason]), [data-switch]")) { // It would change something else now.
      for (const shown of form.querySelectorAll(".plan, .changes")) shown.remove();
    }
    let line = copy.dataset.copy;
    const kind = form.elements.namedItem("kind"), name = form.elements.namedItem("name");
    if (kind && name) { // The scope comes first.
      const scope = kind.value === "all" ? "--all" : `--${kind.value} ${quoted(name.value.trim() || "NAME")}`;
      line = line.replace(/ --(all|\w+ (\$?'[^']*'(\\''[^']*')*|[^' ]+))/, () => ` ${scope}`);
    }
    const flags = form.querySelectorAll("[data-flag]");
    for (const flag of new Set([...flags].map((input) => input.dataset.flag))) { // Some are given several times.
      line = line.replace(new RegExp(` --${flag} (\\$?'[^']*'(\\\\''[^']*')*|[^' ]+)`, "g"), "");
    }
    for (const input of flags) {
      if (input.name === "from" && form.elements.namedItem("from_step").value.trim()) continue; // The command takes one of both.
      const value = input.value.trim() || (input.required ? "WHY" : "");
      if (value) line += ` --${input.dataset.flag} ${quoted((input.dataset.prefix ?? "") + value + (input.dataset.unit ?? ""))}`;
    }
    for (const { dataset, selectedIndex, length } of form.querySelectorAll("[data-switch]")) {
      line = line.replace(` --${dataset.switch}`, "") + (selectedIndex === length - 1 ? ` --${dataset.switch}` : "");
    }
    copy.dataset.copy = form.querySelector(".command code").textContent = line;
  });
  // A box that ticks all others of its form.
  document.addEventListener("change", (event) => {
    if (!event.target.dataset.ticks) return;
    for (const box of event.target.form.elements) {
      if (box.name === event.target.dataset.ticks) box.checked = event.target.checked;
    }
  });
  // Keys: g and another one go to a page that the navigation has, j and k to the link of the next
  // row or card and of the one before, which Enter opens.
  const pages = {
    a: "", f: "flow", j: "jobs", n: "lines", e: "failures", s: "services", k: "workers", o: "outbox", i: "inbox", p: "pauses",
    w: "webhooks", r: "operations", l: "protocols", u: "audit",
  };
  const entry = (key) => key in pages && document.querySelector(`#nav a[href="/ui/${pages[key]}"]`);
  const step = (by) => {
    const rows = [...document.querySelectorAll("main :is(tbody tr, article)")].filter((row) => row.querySelector("a[href]"));
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.querySelector("a[href]").focus();
  };
  const showKeys = () => {
    const list = make("dl", "", { className: "facts keys" });
    const say = (keys, text) => list.append(make("dt", keys), make("dd", text));
    say("/", "search");
    say("j, k", "next and previous row");
    say("Enter", "open it");
    for (const key of Object.keys(pages)) if (entry(key)) say("g " + key, entry(key).firstChild.textContent.trim());
    say("?", "these keys");
    show(make("h1", "Keys"), list);
  };
  const acts = {
    "/": () => document.querySelector(".search input")?.focus(),
    "?": showKeys, j: () => step(1), k: () => step(-1),
  };
  let going = -Infinity; // When g was pressed.
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = event.timeStamp - going < 2000 && entry(event.key);
    going = event.key === "g" ? event.timeStamp : -Infinity;
    const act = page ? () => page.click() : Object.hasOwn(acts, event.key) && acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // Charts: a figure has its data, and a smaller picture for browsers without script.
  const charts = new WeakMap();
  const chart = (figure) => {
    let spec = JSON.parse(figure.dataset.chart);
    const lines = spec.series;
    const data = [lines[0].values.map((_, i) => spec.from + 60 * i), ...lines.map((line) => line.values)];
    const drawn = charts.get(figure);
    if (drawn) { drawn.setData(data, spec); return; }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    const plot = figure.querySelector(".plot");
    plot.replaceChildren();
    const size = () => ({ width: Math.max(plot.clientWidth, 240), height: 200 });
    const made = new window.uPlot({
      ...size(),
      class: "idle",
      tzDate: (s) => window.uPlot.tzDate(new Date(1000 * s), "Etc/UTC"), // As all times of the console.
      hooks: {
        drawClear: [(u) => { // A shaded band: the current minute is not over.
          if (!spec.open) return;
          const from = Math.max(u.valToPos(u.data[0].at(-2) ?? -Infinity, "x", true), u.bbox.left);
          u.ctx.fillStyle = colour("idle-bg");
          u.ctx.fillRect(from, u.bbox.top, u.bbox.left + u.bbox.width - from, u.bbox.height);
        }],
        draw: [(u) => { // A line for each mark, which the caption names.
          u.ctx.strokeStyle = colour("dim");
          for (const mark of spec.marks ?? []) {
            const x = u.valToPos(mark.at, "x", true);
            u.ctx.beginPath();
            u.ctx.moveTo(x, u.bbox.top);
            u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
            u.ctx.stroke();
          }
        }],
        setLegend: [(u) => u.root.classList.toggle("idle", u.cursor.idx == null)], // No value is pointed at.
      },
      series: [{ label: "UTC", value: "{HH}:{mm}" }, ...lines.map((line, i) => ({
        label: line.label, stroke: colour(line.colour), width: 2, dash: i === 0 ? [] : [6 * i, 4], points: { show: false },
      }))],
      axes: [{ ...axis, values: "{HH}:{mm}", space: 60, label: "UTC", labelSize: 16, labelFont: "11px system-ui, sans-serif" }, { ...axis, size: 60 }],
      scales: { y: { range: (_, min, max) => [0, Math.max(max * 1.1, 1)] } },
    }, data, plot);
    const resized = new ResizeObserver(() => { if (plot.clientWidth !== made.width) made.setSize(size()); });
    resized.observe(plot);
    charts.set(figure, { setData: (fresh, anew) => { spec = anew; made.setData(fresh); }, end: () => { resized.disconnect(); made.destroy(); } });
  };
  let asked = false; // Pages without a chart do not load what draws them.
  const drawCharts = () => {
    const figures = document.querySelectorAll("figure.chart");
    if (window.uPlot) for (const figure of figures) chart(figure);
    else if (figures.length > 0 && !asked) {
      asked = true;
      document.head.append(Object.assign(document.createElement("script"), { src: document.body.dataset.charts, onload: drawCharts }));
    }
  };
  // The colours of a chart are those of the scheme in which it was drawn.
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const figure of document.querySelectorAll("figure.chart")) {
      charts.get(figure)?.end();
      charts.delete(figure);
    }
    drawCharts();
  });
  // A chart stays when a live page changes, and gets the new data.
  const keepChart = (old, fresh) => {
    if (!charts.has(old) || !fresh.dataset?.chart) return true;
    old.dataset.chart = fresh.dataset.chart;
    old.querySelector("figcaption").replaceWith(fresh.querySelector("figcaption").cloneNode(true));
    chart(old);
    return false;
  };

  // A new rendering changes neither the field that the user types in, nor which details are open,
  // nor what a button says of its copy.
  if (window.Idiomorph) {
    window.Idiomorph.defaults.ignoreActiveValue = true;
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.tagName === "DETAILS") && name !== "data-copied";
    window.Idiomorph.defaults.callbacks.beforeNodeMorphed = keepChart;
  }

  document.addEventListener("DOMContentLoaded", () => {
    // On a phone the navigation scrolls sideways.
    const here = document.querySelector("nav [aria-current]");
    if (here) here.parentElement.scrollLeft = here.offsetLeft - 60;
    tick();
    drawCharts();
    setInterval(tick, 1000);
  });
})();
