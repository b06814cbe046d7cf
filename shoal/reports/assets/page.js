// The report as a whole: the data inside the page, the theme, the contents.
"use strict";

Shoal.read = function (id) {
  return JSON.parse(document.getElementById(id).textContent);
};

// Auto follows the system; the button walks through auto, light, dark.
Shoal.theme = function () {
  var button = document.getElementById("theme"), names = ["auto", "light", "dark"], now = "auto";
  var store = function (value) { try { return value ? localStorage.setItem("shoal-theme", value) : localStorage.getItem("shoal-theme"); } catch (error) { return null; } };
  var use = function (name) {
    now = names.indexOf(name) < 0 ? "auto" : name;
    if (now === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = "Theme: " + now;
  };
  use(store());
  button.addEventListener("click", function () { use(names[(names.indexOf(now) + 1) % 3]); store(now); });
};

Shoal.contents = function () {
  var nav = document.getElementById("contents");
  nav.replaceChildren.apply(nav, Array.from(document.querySelectorAll("main section[data-title]")).map(function (s) {
    return Shoal.el("a", { href: "#" + s.id }, s.dataset.title);
  }));
};

Shoal.heading = function (page) {
  var words = page.method + " · seed " + page.seed + " · " + Shoal.number(page.rounds.done) + " rounds · " + page.engine;
  return [Shoal.el("h1", {}, page.name), Shoal.el("p", { class: "quiet" }, words + (page.state === "finished" ? "" : " · not finished"))];
};

// One run, or several: side by side, then one of them in full.
Shoal.report = function () {
  var data = Shoal.read("shoal-data"), main = document.getElementById("main");
  Shoal.theme();
  var title = Shoal.el("div", { class: "title" }), run = Shoal.el("div", { id: "run" });
  if (data.versus) {
    var rounds = Math.max.apply(null, data.pages.map(function (p) { return p.rounds.planned || p.rounds.done; }));
    var sides = Shoal.el("div");
    Shoal.versus(sides, data.versus, data.pages[0].shifts, rounds);
    main.replaceChildren(Shoal.el("h1", {}, data.pages.length + " runs"), sides, Shoal.picker(data.pages, title, run), title, run);
  } else main.replaceChildren(title, run);
  Shoal.open(data.pages[0], title, run, !data.versus);
  // charts are drawn when their width is known: one frame later
  requestAnimationFrame(function () {
    requestAnimationFrame(function () { performance.mark("shoal-drawn"); document.documentElement.dataset.drawn = "yes"; });
  });
};

Shoal.open = function (page, title, root, alone) {
  var heading = Shoal.heading(page);
  if (!alone) heading[0] = Shoal.el("h2", { class: "run-name" }, page.name);
  title.replaceChildren.apply(title, heading);
  Shoal.run(root, page);
  Shoal.contents();
};

Shoal.picker = function (pages, title, root) {
  var choice = Shoal.el("select", { id: "choice" }, pages.map(function (p, i) { return Shoal.el("option", { value: i }, p.name + ": " + p.method + ", seed " + p.seed); }));
  choice.addEventListener("change", function () { Shoal.open(pages[+choice.value], title, root); });
  return Shoal.el("p", { class: "picker" }, [Shoal.el("label", { for: "choice" }, "One run in full: "), choice]);
};
