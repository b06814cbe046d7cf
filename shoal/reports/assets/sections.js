// The sections of one run's page; each returns a node, or null where the run has nothing to show.
"use strict";

Shoal.section = function (id, title, children) {
  var kept = children.filter(function (c) { return c; });
  if (!kept.length) return null;
  return Shoal.el("section", { id: id, "data-title": title }, [Shoal.el("h2", {}, title)].concat(kept));
};

Shoal.over = function (page, options) {
  return Shoal.lines(Object.assign({
    x: page.x, span: page.span, shifts: page.shifts,
    rounds: Math.max(1, page.rounds.planned || page.rounds.done),
  }, options));
};

Shoal.named = function (page, name, colour, shown) {
  return Object.assign({ name: shown || name, colour: colour }, page.series[name]);
};

Shoal.measured = function (page, name) {
  var s = page.series[name];
  return s && s.mean.some(function (v) { return v !== null; });
};

// ---- at a glance ----
Shoal.glance = function (page) {
  var s = page.summary, t = s.totals, of = s.score || "accuracy";
  var figures = [
    [page.state === "finished" ? "final " + of : of + " now", Shoal.percent(s["final_" + of])], ["mean " + of, Shoal.percent(s["mean_" + of])],
    ["mean fall, points", Shoal.points(s.mean_fall)], ["lowest after a shift", Shoal.percent(s.lowest)], ["rounds until back", Shoal.tenths(s.mean_rounds_to_recovery)],
    ["sent", Shoal.bytes(t.bytes_up + t.bytes_down)], ["time", Shoal.seconds(s.seconds)],
  ];
  if (s["final_" + of] === null) figures.splice(0, 5, ["final loss", Shoal.number(s.final_loss)]);
  Object.keys(s.metrics || {}).forEach(function (name) { if (name !== of) figures.push(["final " + name, Shoal.number(s.metrics[name])]); });
  if (s.to_target) figures.push(["rounds to " + Shoal.percent(s.to_target.target), s.to_target.rounds === null ? "never" : Shoal.number(s.to_target.rounds)]);
  if (s.detection) figures.push(["shifts noticed", s.detection.hits + " of " + s.detection.shifts]);
  var tiles = Shoal.el("dl", { class: "tiles" }, figures.map(function (f) {
    return Shoal.el("div", {}, [Shoal.el("dt", {}, f[0]), Shoal.el("dd", {}, f[1])]);
  }));
  var verdicts = Shoal.el("ul", { class: "verdicts" }, page.verdicts.map(function (v) {
    var word = { good: "✓", bad: "!", plain: "·" }[v.tone];
    return Shoal.el("li", { class: v.tone }, [Shoal.el("b", { "aria-hidden": "true" }, word), v.text]);
  }));
  var notes = page.notes.length ? Shoal.el("ul", { class: "notes" }, page.notes.map(function (n) { return Shoal.el("li", {}, n); })) : null;
  return Shoal.section("glance", "At a glance", [tiles, verdicts, notes]);
};

// ---- accuracy, loss and the world, one above the other ----
Shoal.course = function (page) {
  var charts = [], scored = { active: "the classes that are held now", global: "all classes", members: "members' own rows", each: "members' own rows", tasks: "the tasks so far" };
  var of = page.summary.score || "accuracy", name = of === "accuracy" ? "Accuracy" : of;
  if (Shoal.measured(page, of)) {
    charts.push(Shoal.over(page, {
      title: name + " on " + (scored[page.scored_on] || page.scored_on), series: [Shoal.named(page, of, 0)], format: Shoal.percent,
      ticks: Shoal.whole, domain: of === "r2" ? undefined : [0, 1], height: 280, effects: true, noticed: page.noticed, legend: Shoal.effectLegend(page),
    }));
  }
  if (Shoal.measured(page, "loss")) charts.push(Shoal.over(page, { title: "Loss", series: [Shoal.named(page, "loss", 1)], format: Shoal.number, height: 170 }));
  if (page.timeline) charts.push(Shoal.timeline(page));
  var here = Shoal.extent([page.series.active.mean, page.series.active.low, page.series.active.high]);
  if (here && here[0] === here[1]) charts.push(Shoal.el("p", { class: "quiet" }, Shoal.number(here[0]) + " members are here in every round."));
  else charts.push(Shoal.over(page, { title: "Members here", series: [Shoal.named(page, "active", 2, "members")], format: Shoal.number, height: 130 }));
  return Shoal.section("course", "What happened", charts.concat([Shoal.shiftTable(page)]));
};

Shoal.effectLegend = function (page) {
  var items = [];
  if (page.shifts.length && page.shifts.length <= Shoal.MANY) items = [
    { node: Shoal.el("i", { class: "key box below" }), name: "below the level before the shift" },
    { node: Shoal.el("i", { class: "key box never" }), name: "never back before the next one" }];
  if (page.noticed.length) items.push({ node: Shoal.el("b", { class: "noticed" }, "▴"), name: "a detector noticed" });
  return items.length ? Shoal.legend(items) : null;
};

Shoal.shiftTable = function (page) {
  if (!page.shifts.length) return Shoal.el("p", { class: "quiet" }, "Nothing changed in this world.");
  var rows = page.shifts.map(function (s) {
    return [s.round, Shoal.shiftName(s), s.note, Shoal.percent(s.before), Shoal.percent(s.lowest), s.fall === null ? "–" : Shoal.points(s.fall), s.level === null || s.lowest === null ? "–" : s.rounds === null ? "never" : s.rounds];
  });
  var head = ["round", "what changed", "note", "before", "lowest", "fall (points)", "rounds until back"];
  if (rows.length > 30) return Shoal.details("What every one of the " + Shoal.number(rows.length) + " shifts did", function () { return { head: head, rows: rows }; });
  return Shoal.scroller(Shoal.table(head, rows, "shifts"));
};

// ---- tasks ----
Shoal.tasks = function (page) {
  if (!page.tasks) return null;
  var t = page.tasks, names = t.names;
  var matrix = Shoal.heat({
    title: "What is left of earlier tasks", rows: names.map(function (n) { return "after " + n; }), columns: names, rowsName: "after", columnsName: "accuracy on",
    values: t.matrix, format: Shoal.points, shade: function (v) { return v; },
    text: "Accuracy in percent at the end of every stage. Mean at the end " + Shoal.percent(t.acc) + "; backward transfer " + Shoal.points(t.bwt) + " points" + (t.fwt === null ? "" : ", forward transfer " + Shoal.points(t.fwt)) + ".",
  });
  var known = names.map(function (_, i) { return "task " + i; }).filter(function (n) { return Shoal.measured(page, n); });
  var series = known.map(function (n, i) { return Shoal.named(page, n, i % 7, names[i]); });
  var curves = series.length ? Shoal.over(page, { title: "Every task over time", series: series, format: Shoal.percent, ticks: Shoal.whole, domain: [0, 1], legend: Shoal.legend(series) }) : null;
  return Shoal.section("tasks", "Tasks", [matrix, curves]);
};

// ---- what sessions started from ----
Shoal.starts = function (page) {
  if (!page.starts.length) return null;
  var first = Math.min.apply(null, page.starts.map(function (s) { return s.past[0]; }));
  var last = Math.max.apply(null, page.starts.map(function (s) { return s.start - 1; }));
  var columns = [], rows = page.starts.map(function (s) { return "session " + s.start + ", round " + s.round; });
  for (var c = first; c <= last; c++) columns.push(c);
  var grid = function (key) {
    return page.starts.map(function (s) { return columns.map(function (c) { var i = s.past.indexOf(c); return i < 0 || i >= s[key].length ? null : s[key][i]; }); });
  };
  var distances = grid("distances"), far = Shoal.extent(distances), both = [];
  if (far) both.push(Shoal.heat({
    title: "How unlike sessions are", text: "Distance between probes: dark blue is far, yellow is alike.", rows: rows, columns: columns, rowsName: "session", columnsName: "past session",
    values: distances, format: Shoal.number, shade: function (v) { return 1 - v / (far[1] || 1); },
  }));
  both.push(Shoal.heat({
    title: "What each session started from", text: "The weight of the model that ended a past session, in percent.", rows: rows, columns: columns, rowsName: "session", columnsName: "past session",
    values: grid("weights"), format: Shoal.points, shade: function (v) { return v; },
  }));
  return Shoal.section("starts", "Session starts", [Shoal.el("div", { class: "pairs" }, both)]);
};

// ---- what parts reported ----
Shoal.PARTS = {
  gradient_disparity: "Gradient disparity (mean over coordinates)",
  effective_rate: "Effective server rate (mean over coordinates)",
  disparity: "Surprise: |D² − v| (mean over coordinates)",
  beta3: "β₃ (median over coordinates)",
  relative_disparity: "Disparity beside the step: |d| / (√v + τ) (median)",
  guarded_share: "Share of coordinates that the guard holds",
};

Shoal.parts = function (page) {
  var order = ["gradient_disparity", "effective_rate"];
  var names = page.parts.slice().sort(function (a, b) { return (order.indexOf(b) >= 0) - (order.indexOf(a) >= 0); });
  var charts = names.concat(page.metrics || []).filter(function (n) { return Shoal.measured(page, n); }).map(function (name, i) {
    return Shoal.over(page, { title: Shoal.PARTS[name] || name.replace(/_/g, " "), series: [Shoal.named(page, name, i % 7)], format: Shoal.number, height: 180 });
  });
  if (!charts.length) return null;
  return Shoal.section("parts", "What the method reports", [Shoal.el("div", { class: charts.length > 1 ? "pairs" : "" }, charts)]);
};

// ---- clients ----
Shoal.clients = function (page) {
  var m = page.members;
  if (!m) return null;
  var accuracy = m.of === "accuracy", format = accuracy ? Shoal.percent : Shoal.number;
  var series = [
    { name: "lowest to highest", area: true, mean: m.median, low: m.low, high: m.high, colour: 5 },
    { name: "middle half", area: true, mean: m.median, low: m.q25, high: m.q75, colour: 0 },
    { name: "median", mean: m.median, colour: 0 },
  ];
  if (accuracy) series.push({ name: "worst tenth", mean: m.worst_tenth, colour: 1 });
  var spread = Shoal.over(page, {
    title: accuracy ? "Accuracy of members, each on its own rows" : "Length of clients' updates", x: m.round, span: m.span, series: series, format: format,
    domain: accuracy ? [0, 1] : undefined, ticks: accuracy ? Shoal.whole : undefined, legend: Shoal.legend(series), height: 240,
    text: accuracy ? "" : "Evaluation looked at no member by itself; with evaluate: {rows: members_held_out_both_models} this shows who is left behind.",
  });
  var trained = m.times_trained;
  var line = Shoal.el("p", {}, Shoal.number(m.clients) + " clients were seen; they trained in " + trained[0] + " to " + trained[2] + " rounds, half of them in " + Shoal.number(trained[1]) + " or fewer" + (m.never_trained ? "; " + Shoal.number(m.never_trained) + " never trained." : "."));
  return Shoal.section("clients", accuracy ? "Who is left behind" : "Clients", [spread, accuracy ? Shoal.clientGrid(page) : null, line, accuracy ? Shoal.behind(page) : null]);
};

Shoal.clientGrid = function (page) {
  var m = page.members, rows = m.grid.rows.map(function (r) { return page.names ? Shoal.who(page, r[0], r[1]) : r[0] === r[1] ? "client " + r[0] : r[0] + "–" + r[1]; });
  return Shoal.heat({
    title: "Every client over time", rows: rows, rowsName: "client", columns: m.round, columnsName: "round", plain: true, least: rows.length > 24 ? 6 : 13, most: 1000, text: "Yellow is high, dark blue is low; empty where it was not here.",
    values: m.grid.percent.map(function (row) { return m.round.map(function (r) { var v = row[r / m.span]; return v === undefined || v < 0 ? null : v; }); }),
    format: function (v) { return v + " %"; }, shade: function (v) { return v / 100; },
  });
};

Shoal.behind = function (page) {
  var rows = page.members.behind.map(function (b) { return [Shoal.who(page, b.client), Shoal.percent(b.accuracy), b.trained, b.last]; });
  return Shoal.el("div", {}, [Shoal.el("h3", {}, "The lowest at the end (mean of their last five measurements)"),
    Shoal.scroller(Shoal.table(["client", "accuracy", "rounds trained", "last measured in round"], rows))]);
};

// ---- cost, guard, config ----
Shoal.cost = function (page) {
  var sent = [Shoal.named(page, "sent_up", 0, "up"), Shoal.named(page, "sent_down", 1, "down")];
  var time = [Shoal.named(page, "seconds", 2, "seconds a round")];
  return Shoal.section("cost", "Communication and time", [Shoal.el("div", { class: "pairs" }, [
    Shoal.over(page, { title: "Sent so far", series: sent, format: Shoal.bytes, legend: Shoal.legend(sent), height: 190 }),
    Shoal.over(page, { title: "Seconds a round", series: time, format: Shoal.seconds, height: 190, text: "Evaluation included: " + Shoal.seconds(page.summary.seconds_evaluating) + " of " + Shoal.seconds(page.summary.seconds) + "." }),
  ])]);
};

Shoal.guard = function (page) {
  var g = page.guard;
  if (!g.total) return Shoal.section("guard", "Guard", [Shoal.el("p", {}, "No upload was rejected.")]);
  var rows = g.events.map(function (e) { return [e.round, Shoal.who(page, e.client), e.reason]; });
  var said = g.total > rows.length ? "The first " + rows.length + " of " + Shoal.number(g.total) + " rejected uploads." : g.total === 1 ? "One upload was rejected." : Shoal.number(g.total) + " uploads were rejected.";
  return Shoal.section("guard", "Guard", [Shoal.el("p", {}, said), Shoal.scroller(Shoal.table(["round", "client", "reason"], rows))]);
};

Shoal.config = function (page) {
  var button = Shoal.el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", function () { Shoal.copy(page.config, button); });
  return Shoal.section("config", "Config", [Shoal.el("div", { class: "code" }, [button, Shoal.el("pre", { tabindex: 0 }, page.config)])]);
};

Shoal.copy = function (text, button) {
  var done = function () { button.textContent = "Copied"; setTimeout(function () { button.textContent = "Copy"; }, 1500); };
  var by_hand = function () {
    var area = Shoal.el("textarea", { class: "off-screen" }, text);
    document.body.append(area);
    area.select();
    if (document.execCommand("copy")) done();
    area.remove();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, by_hand);
  else by_hand();
};

// Everything on one run, into `root`. May be called again with newer data.
Shoal.run = function (root, page) {
  var made = ["glance", "course", "tasks", "starts", "parts", "clients", "cost", "guard", "config"].map(function (name) { return Shoal[name](page); });
  root.replaceChildren.apply(root, made.filter(function (s) { return s; }));
};
