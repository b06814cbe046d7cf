// Several runs: a ranked table, curves over each other, and paired differences.
"use strict";

Shoal.RANKED = ["", "method", "seeds", "mean", "final", "mean fall", "lowest", "rounds until back", "sent", "time"];

Shoal.versus = function (root, data, shifts, rounds) {
  var parts = [
    Shoal.el("p", { class: "verdict" }, data.verdict),
    data.notes.length ? Shoal.el("ul", { class: "notes" }, data.notes.map(function (n) { return Shoal.el("li", {}, n); })) : null,
    Shoal.scroller(Shoal.ranked(data)), Shoal.overlay(data, shifts, rounds), Shoal.differences(data),
  ];
  var section = Shoal.section("versus", "Side by side", parts);
  root.replaceChildren(section);
};

Shoal.ranked = function (data) {
  return Shoal.table(Shoal.RANKED, data.groups.map(function (g, i) {
    var never = g.never && g.mean !== null ? " (" + Shoal.tenths(g.never) + " never)" : "";
    return [i + 1, g.name, g.seeds.length > 1 ? g.seeds.length + ": " + g.seeds.join(", ") : g.seeds[0], Shoal.percent(g.mean), Shoal.percent(g.final),
      g.fall === null ? "–" : Shoal.points(g.fall), Shoal.percent(g.lowest), Shoal.tenths(g.rounds_back) + never, Shoal.bytes(g.bytes), Shoal.seconds(g.seconds)];
  }), "ranked");
};

// Curves with boxes to tick; seven are on at first, one for each colour.
Shoal.overlay = function (data, shifts, rounds) {
  var of = data.groups[0].of, longest = data.groups.reduce(function (a, g) { return g.x.length > a.x.length ? g : a; });
  var series = data.groups.map(function (g, i) {
    // runs of other lengths may have other steps: a round belongs to the step that holds it
    var step = longest.x.map(function (r) { return g.x.findLastIndex(function (own) { return own <= r; }); });
    var spread = function (list) {
      return list && longest.x.map(function (r, k) { return step[k] >= 0 && r < g.x[step[k]] + g.span ? list[step[k]] : null; });
    };
    return { name: g.name, colour: i % 7, off: i >= 7, mean: spread(g.band.mean), low: spread(g.band.low), high: spread(g.band.high) };
  });
  var figure, boxes = Shoal.el("ul", { class: "legend boxes" }, series.map(function (s) {
    var box = Shoal.el("input", { type: "checkbox" });
    box.checked = !s.off;
    box.addEventListener("change", function () { s.off = !box.checked; figure.redraw(Math.floor(figure.querySelector(".plot").clientWidth)); });
    return Shoal.el("li", {}, [Shoal.el("label", {}, [box, Shoal.el("i", { class: "key c" + s.colour }), s.name])]);
  }));
  var banded = series.some(function (s) { return s.low; });
  figure = Shoal.lines({
    title: (of === "accuracy" ? "Accuracy" : of === "loss" ? "Loss" : of) + " over rounds", x: longest.x, span: longest.span, rounds: rounds, series: series, shifts: shifts, legend: boxes, height: 320,
    format: of !== "loss" ? Shoal.percent : Shoal.number, ticks: of !== "loss" ? Shoal.whole : undefined, domain: of !== "loss" && of !== "r2" ? [0, 1] : undefined,
    text: (banded ? "Lines are means over seeds, bands reach from the lowest seed to the highest. " : "") + (series.length > 7 ? "The seven first in the table are ticked." : ""),
  });
  return figure;
};

// Against the first of the ranking; all pairs are in the table.
Shoal.differences = function (data) {
  var first = data.groups[0].name, level = Math.round(100 * data.level);
  var mine = data.pairs.filter(function (p) { return p.a === first && p.of === "mean"; });
  if (!data.pairs.length) return data.groups.length > 1 && data.groups[0].mean !== null ? Shoal.el("p", { class: "quiet" }, "No two methods can be paired, so there are no differences; the reasons stand above the table.") : null;
  var table = function () {
    return { head: ["first", "second", "figure", "seeds", "difference (points)", "interval", "verdict"], rows: data.pairs.map(function (p) {
      return [p.a, p.b, p.of, p.seeds.join(", "), Shoal.signed(p.mean), p.low === null ? "–" : Shoal.signed(p.low) + " to " + Shoal.signed(p.high), p.verdict];
    }) };
  };
  return Shoal.figure({
    title: "Mean " + data.groups[0].of + " of " + first + " minus that of the others", draw: function (width) { return Shoal.intervals(mine, width); }, table: table,
    text: mine.every(function (p) { return p.low === null; }) ? "Points, paired by seed. One seed says nothing about the next, so there are no intervals and no winner." : "Points, paired by seed, with intervals that all hold together with " + level + " % confidence (Student's t over seeds, Bonferroni). An interval that touches 0 supports no winner.",
  });
};

Shoal.signed = function (value) {
  return value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(100 * value).toFixed(1);
};

Shoal.intervals = function (pairs, width) {
  var tall = 30, top = 14, left = Math.min(230, width * 0.34), right = Math.min(110, width * 0.26), height = top + tall * pairs.length + 28;
  var range = Shoal.extent([[0], pairs.map(function (p) { return p.low === null ? p.mean : p.low; }), pairs.map(function (p) { return p.high === null ? p.mean : p.high; })]);
  var room = (range[1] - range[0]) * 0.06 || 0.01;
  var x = Shoal.scale(range[0] - room, range[1] + room, left, width - right);
  var svg = Shoal.svg("svg", { viewBox: "0 0 " + width + " " + height, width: "100%", role: "img", class: "intervals", "aria-label": "Paired differences; the table that follows has every figure." });
  Shoal.ticks(range[0] - room, range[1] + room, Math.max(2, (width - left - right) / 90)).forEach(function (tick) {
    svg.append(Shoal.svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: height - 26, class: tick === 0 ? "zero" : "grid" }));
    svg.append(Shoal.svg("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, tick === 0 ? "0" : Shoal.signed(tick)));
  });
  pairs.forEach(function (p, i) {
    var y = top + tall * (i + 0.5), sure = p.verdict === "ahead" || p.verdict === "behind", fits = Math.max(6, Math.floor((left - 12) / 6.3));
    svg.append(Shoal.svg("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, p.b.length > fits ? p.b.slice(0, fits - 1) + "…" : p.b));
    if (p.low !== null) svg.append(Shoal.svg("line", { x1: x(p.low), x2: x(p.high), y1: y, y2: y, class: "interval" + (sure ? " sure" : "") }));
    svg.append(Shoal.svg("circle", { cx: x(p.mean), cy: y, r: 4.5, class: "middle" + (sure ? " sure" : "") }, [Shoal.svg("title", {}, p.b + ": " + Shoal.signed(p.mean) + " points, " + p.verdict)]));
    svg.append(Shoal.svg("text", { x: width - right + 10, y: y + 4, class: sure ? "" : "quiet" }, p.verdict === "one seed: no interval" ? "one seed" : p.verdict));
  });
  return svg;
};
