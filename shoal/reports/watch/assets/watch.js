// The live page: a list of runs, one run, or several side by side. The charts are those of reports.
// The address says which (/, /?run=a, /?compare=a&compare=b); the server says what changed.
"use strict";
var Watch = {};

Watch.WORDS = { running: "running", finished: "finished", silent: "no news", waiting: "no round yet" };
Watch.AGAIN = 5000; // milliseconds after which times are brought up to date without any news

Watch.json = function (path) {
  return fetch(path, { headers: { accept: "application/json" } }).then(function (answer) {
    return answer.json().then(function (value) {
      if (!answer.ok) throw new Error(value.error || "the server answers " + answer.status);
      return value;
    });
  });
};

Watch.query = function (key, names) {
  return names.map(function (name) { return key + "=" + encodeURIComponent(name); }).join("&");
};

Watch.ago = function (seconds) {
  if (seconds < 2) return "now";
  if (seconds < 120) return Math.round(seconds) + " s ago";
  if (seconds < 7200) return Math.round(seconds / 60) + " min ago";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h ago";
  return Math.round(seconds / 86400) + " days ago";
};

Watch.progress = function (card) {
  var words = Shoal.number(card.done) + (card.planned ? " of " + Shoal.number(card.planned) : "");
  if (!card.planned) return [words];
  return [Shoal.el("progress", { max: card.planned, value: card.done, "aria-label": "rounds played" }), " " + words];
};

Watch.state = function (card) {
  return Shoal.el("span", { class: "state " + card.state }, Watch.WORDS[card.state]);
};

Watch.left = function (card) {
  return card.left === null ? "–" : "about " + Shoal.seconds(card.left < 10 ? Math.round(10 * card.left) / 10 : Math.round(card.left));
};

// ---- the list ----
Watch.list = function (main) {
  var ticked = new Set(), needle = "", cards = [];
  var filter = Shoal.el("input", { type: "search", placeholder: "name or method", "aria-label": "Filter runs" });
  var compare = Shoal.el("button", { type: "button", id: "compare", disabled: "" }, "Compare ticked runs");
  var told = Shoal.el("span", { class: "quiet", role: "status" }), folder = Shoal.el("p", { class: "quiet" });
  var body = Shoal.el("tbody"), heads = ["", "run", "method", "seed", "state", "rounds", "left", "score", "changed"];
  var table = Shoal.el("table", { class: "runs" }, [Shoal.el("thead", {}, [Shoal.el("tr", {}, heads.map(function (h) { return Shoal.el("th", h ? {} : { "aria-label": "compare" }, h); }))]), body]);
  var scroll = Shoal.scroller(table);
  scroll.classList.add("whole");
  main.replaceChildren(Shoal.el("h1", {}, "Runs"), folder, Shoal.el("div", { class: "tools" }, [filter, compare, told]), scroll);

  var show = function () {
    var shown = cards.filter(function (c) { return (c.name + " " + c.method).toLowerCase().indexOf(needle) >= 0; });
    var active = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
    body.replaceChildren.apply(body, shown.map(function (card) { return Watch.row(card, ticked, update); }));
    if (active) body.querySelectorAll("[data-key]").forEach(function (n) { if (n.dataset.key === active) n.focus(); });
    update();
  };
  var update = function () {
    compare.disabled = ticked.size < 2;
    told.textContent = cards.length + (cards.length === 1 ? " run" : " runs") + (ticked.size ? ", " + ticked.size + " ticked" : "");
  };
  filter.addEventListener("input", function () { needle = filter.value.toLowerCase(); show(); });
  compare.addEventListener("click", function () { location.assign("/?" + Watch.query("compare", Array.from(ticked))); });
  return function () {
    return Watch.json("/api/runs").then(function (found) {
      cards = found.runs;
      var names = new Set(cards.map(function (c) { return c.name; }));
      ticked.forEach(function (name) { if (!names.has(name)) ticked.delete(name); });
      folder.textContent = found.folder;
      if (cards.length) show();
      else body.replaceChildren(Shoal.el("tr", {}, [Shoal.el("td", { colspan: heads.length }, "No runs here yet. Start one with: shoal run FILE -o DIR")]));
    });
  };
};

Watch.row = function (card, ticked, update) {
  var box = Shoal.el("input", { type: "checkbox", "aria-label": "Compare " + card.name, "data-key": "box " + card.name });
  box.checked = ticked.has(card.name);
  box.addEventListener("change", function () { ticked[box.checked ? "add" : "delete"](card.name); update(); });
  var link = Shoal.el("a", { href: "/?" + Watch.query("run", [card.name]), "data-key": "run " + card.name }, card.name);
  return Shoal.el("tr", { "data-run": card.name }, [
    Shoal.el("td", {}, [box]), Shoal.el("th", { scope: "row" }, [link]), Shoal.el("td", { class: "method" }, card.method),
    Shoal.el("td", {}, card.seed === null ? "–" : card.seed), Shoal.el("td", {}, [Watch.state(card)]), Shoal.el("td", {}, Watch.progress(card)),
    Shoal.el("td", {}, Watch.left(card)), Shoal.el("td", {}, card.accuracy === null ? "–" : card.score + " " + Shoal.percent(card.accuracy)),
    Shoal.el("td", {}, Watch.ago(Date.now() / 1000 - card.changed)),
  ]);
};

// ---- one run ----
Watch.run = function (main, name) {
  var status = Shoal.el("div", { class: "status", id: "status" }), title = Shoal.el("div", { class: "title" }), root = Shoal.el("div", { id: "run" });
  var drawn = "";
  main.replaceChildren(Shoal.el("p", {}, [Shoal.el("a", { href: "/" }, "← all runs")]), title, status, root);
  document.title = name + " · shoal watch";
  return function () {
    return Watch.json("/api/run?" + Watch.query("name", [name])).then(function (found) {
      status.replaceChildren.apply(status, Watch.status(found.card));
      var text = JSON.stringify(found.page);
      if (text === drawn) return;
      drawn = text;
      if (!found.page) {
        title.replaceChildren(Shoal.el("h1", {}, name));
        root.replaceChildren(Shoal.el("p", { class: "empty" }, "No round has been played yet."));
        return;
      }
      Watch.kept(root, function () { Shoal.open(found.page, title, root, true); });
      document.documentElement.dataset.rounds = found.page.rounds.done;
    });
  };
};

Watch.status = function (card) {
  var parts = [Watch.state(card), Shoal.el("span", {}, Watch.progress(card))];
  if (card.left !== null) parts.push(Shoal.el("span", {}, Watch.left(card) + " left"));
  if (card.accuracy !== null) parts.push(Shoal.el("span", {}, card.score + " now " + Shoal.percent(card.accuracy)));
  parts.push(Shoal.el("span", { class: "quiet" }, "changed " + Watch.ago(Date.now() / 1000 - card.changed)));
  if (card.state === "silent") parts.push(Shoal.el("span", {}, ["if it was stopped: ", Shoal.el("code", {}, card.resume)]));
  return parts;
};

// ---- several runs ----
Watch.compare = function (main, names) {
  var sides = Shoal.el("div", { id: "sides" }), list = Shoal.el("ul"), drawn = "";
  main.replaceChildren(Shoal.el("p", {}, [Shoal.el("a", { href: "/" }, "← all runs")]), Shoal.el("h1", {}, names.length + " runs"), list, sides);
  document.title = names.length + " runs · shoal watch";
  return function () {
    return Watch.json("/api/compare?" + Watch.query("name", names)).then(function (found) {
      list.replaceChildren.apply(list, found.cards.map(function (card) {
        var link = Shoal.el("a", { href: "/?" + Watch.query("run", [card.name]) }, card.name);
        return Shoal.el("li", {}, [link, ": " + card.method + ", seed " + card.seed + ", ", Watch.state(card), " "].concat(Watch.progress(card)));
      }));
      var text = JSON.stringify(found.versus);
      if (text === drawn) return;
      drawn = text;
      if (!found.versus) sides.replaceChildren(Shoal.el("p", { class: "empty" }, "Fewer than two of these runs have played a round."));
      else Watch.kept(sides, function () { Shoal.versus(sides, found.versus, found.shifts, found.rounds); });
      Shoal.contents();
    });
  };
};

// Draw anew and leave the reader where they were: the place on the page, open tables, unticked
// curves, the focus, and what the pointer is on.
Watch.kept = function (root, draw) {
  var keys = function () { return Array.from(root.querySelectorAll("details, .boxes input, [tabindex], button, .scroll")); };
  var old = keys(), focus = old.indexOf(document.activeElement), top = window.scrollY;
  var open = old.map(function (n) { return n.open; }), ticks = Array.from(root.querySelectorAll(".boxes input")).map(function (n) { return n.checked; });
  root.style.minHeight = root.offsetHeight + "px";
  draw();
  root.querySelectorAll("figure.chart").forEach(function (figure) {
    var width = Math.floor(figure.querySelector(".plot").clientWidth);
    if (width > 0) figure.redraw(width); // now, and not when the observer gets to it: no flicker
  });
  var boxes = Array.from(root.querySelectorAll(".boxes input"));
  if (boxes.length === ticks.length) boxes.forEach(function (box, i) { if (box.checked !== ticks[i]) box.click(); });
  var now = keys();
  if (now.length === old.length) {
    now.forEach(function (n, i) { if (open[i]) n.open = true; });
    if (focus >= 0) now[focus].focus({ preventScroll: true });
  }
  root.style.minHeight = "";
  window.scrollTo(0, top);
  var under = Watch.pointer && document.elementFromPoint(Watch.pointer.clientX, Watch.pointer.clientY);
  var plot = under && under.closest(".plot");
  if (plot && plot.onpointermove) plot.onpointermove(Watch.pointer);
};

// ---- what changed, and when to look again ----
Watch.start = function () {
  var main = document.getElementById("main"), link = document.getElementById("link"), asked = new URLSearchParams(location.search);
  var names = asked.getAll("compare"), run = asked.get("run"), busy = false, again = false;
  Shoal.theme();
  document.addEventListener("pointermove", function (event) { Watch.pointer = { clientX: event.clientX, clientY: event.clientY }; });
  var refresh = names.length ? Watch.compare(main, names) : run !== null ? Watch.run(main, run) : Watch.list(main);
  var problem = Shoal.el("p", { id: "problem", class: "verdict", role: "alert", hidden: "" });
  main.prepend(problem);
  var say = function (text, kind) { link.textContent = text; link.className = kind; };
  var look = function () {
    if (busy) { again = true; return; }
    busy = true; again = false;
    refresh().then(function () {
      problem.hidden = true;
    }, function (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }).then(function () {
      busy = false;
      document.documentElement.dataset.drawn = "yes";
      if (again) look();
    });
  };
  var mine = function (changed) {
    if (!changed.length || !(names.length || run !== null)) return true;
    return changed.some(function (n) { return n === run || names.indexOf(n) >= 0; });
  };
  var source = new EventSource("/api/events");
  source.onopen = function () { say("live", "on"); };
  source.onerror = function () { say("the server is away; trying again", "off"); };
  source.onmessage = function (event) { if (mine(JSON.parse(event.data).changed)) look(); };
  setInterval(function () { if (source.readyState === EventSource.OPEN) look(); }, Watch.AGAIN);
  look();
};

Watch.start();
