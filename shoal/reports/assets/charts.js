// Lines over rounds, and the world's timeline below them on the same x axis.
"use strict";

Shoal.KINDS = {
  members: { sign: "▲", word: "members change" },
  concept: { sign: "◆", word: "concept drifts" },
  domain: { sign: "■", word: "new domain" },
  classes: { sign: "●", word: "new classes" },
};

Shoal.shiftName = function (shift) {
  var words = shift.kinds.map(function (k) { return (Shoal.KINDS[k] || { word: k }).word; });
  return words.join(", ") + (shift.announced ? "" : " (hidden)");
};

// Vertical lines where the world changed; signs above them while there is room. Beyond MANY they
// are short ticks above, at most one a pixel: two thousand lines would hide what they mark.
Shoal.MANY = 60;

Shoal.marks = function (shifts, x, top, bottom) {
  var group = Shoal.svg("g", { class: "marks" }), free = -Infinity, seen = {}, path = "";
  var many = shifts.length > Shoal.MANY;
  shifts.forEach(function (shift) {
    var at = x(shift.round), kind = shift.kinds[0];
    if (many) {
      if (!seen[Math.round(at)]) path += "M" + Math.round(at) + " " + (top - 8) + "V" + (top - 2);
      seen[Math.round(at)] = true;
      return;
    }
    group.append(Shoal.svg("line", { x1: at, x2: at, y1: top, y2: bottom, class: "mark" + (shift.announced ? "" : " hidden-shift") }));
    if (at - free >= 12) {
      var sign = shift.kinds.map(function (k) { return (Shoal.KINDS[k] || { sign: "•" }).sign; }).join("");
      group.append(Shoal.svg("text", { x: at, y: top - 7, class: "sign kind-" + kind, "text-anchor": "middle" }, sign));
      free = at;
    }
  });
  if (path) group.append(Shoal.svg("path", { d: path, class: "mark many" }));
  return group;
};

Shoal.axes = function (width, height, x, rounds, y, ticks, format) {
  var m = Shoal.MARGIN, group = Shoal.svg("g", { class: "axes" });
  ticks.forEach(function (tick) {
    group.append(Shoal.svg("line", { x1: m.left, x2: width - m.right, y1: y(tick), y2: y(tick), class: "grid" }));
    group.append(Shoal.svg("text", { x: m.left - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
  });
  Shoal.ticks(0, rounds, Math.max(2, Math.floor(width / 110)), true).forEach(function (tick) {
    group.append(Shoal.svg("text", { x: x(tick), y: height - m.bottom + 18, "text-anchor": "middle" }, Shoal.number(tick)));
  });
  return group;
};

// options: title, text, x, rounds (the end of the axis), span, series: [{name, mean, low, high,
// colour, area (a band without a line), off}], noticed (rounds), format, ticks (a format for the axis), domain ([low, high] or none), shifts, effects (shade falls and recoveries),
// height, legend (a node instead of the plain one)
Shoal.lines = function (options) {
  var height = options.height || 240, m = Shoal.MARGIN;
  var shown = function () { return options.series.filter(function (s) { return !s.off; }); };
  var geometry = function (width) {
    var range = options.domain;
    if (!range) {
      range = Shoal.extent(shown().flatMap(function (s) { return [s.mean, s.low, s.high]; })) || [0, 1];
      var room = (range[1] - range[0]) * 0.06 || Math.abs(range[0]) * 0.1 || 1;
      range = [range[0] >= 0 && range[0] - room < 0 ? 0 : range[0] - room, range[1] + room];
    }
    return {
      range: range,
      x: Shoal.scale(0, options.rounds, m.left, width - m.right),
      y: Shoal.scale(range[0], range[1], height - m.bottom, m.top),
    };
  };
  var draw = function (width) {
    var g = geometry(width);
    var svg = Shoal.svg("svg", {
      viewBox: "0 0 " + width + " " + height, width: "100%", role: "img", class: "lines" + (options.series.length > 1 ? " several" : ""),
      "aria-label": Shoal.spoken(options),
    });
    var ticks = Shoal.ticks(g.range[0], g.range[1], Math.max(3, Math.floor(height / 40)));
    if (options.effects && options.shifts.length <= Shoal.MANY) svg.append(Shoal.shades(options.shifts, g.x, m.top, height - m.bottom, options.rounds));
    svg.append(Shoal.axes(width, height, g.x, options.rounds, g.y, ticks, options.ticks || options.format));
    if (options.shifts) svg.append(Shoal.marks(options.shifts, g.x, m.top, height - m.bottom));
    var xs = options.x.map(g.x), clamp = function (v) { return v === null || v === undefined ? null : g.y(v); };
    shown().forEach(function (s) {
      if (s.low) svg.append(Shoal.svg("path", { d: Shoal.area(xs, s.low.map(clamp), s.high.map(clamp)), class: "band c" + s.colour }));
    });
    shown().filter(function (s) { return !s.area; }).forEach(function (s) { Shoal.line(svg, xs, s.mean.map(clamp), s.colour); });
    if (options.effects) svg.append(Shoal.falls(options.shifts, options.series[0], g, options));
    (options.noticed || []).forEach(function (round) {
      svg.append(Shoal.svg("text", { x: g.x(round), y: height - m.bottom, "text-anchor": "middle", class: "noticed" }, "▴"));
    });
    svg.append(Shoal.svg("line", { class: "cross", y1: m.top, y2: height - m.bottom, visibility: "hidden" }));
    return svg;
  };
  return Shoal.figure({
    title: options.title, text: options.text, draw: draw, legend: options.legend, className: options.className,
    after: function (plot, width) { Shoal.pointer(plot, options, geometry(width), width, shown); },
    table: function () { return Shoal.seriesTable(options); },
  });
};

Shoal.line = function (svg, xs, ys, colour) {
  var gone = function (i) { return ys[i] === null || ys[i] === undefined; };
  svg.append(Shoal.svg("path", { d: Shoal.path(xs, ys), class: "line c" + colour }));
  ys.forEach(function (y, i) { // few or lonely points: show that they are points
    if (y !== null && (xs.length <= 40 || (gone(i - 1) && gone(i + 1)))) svg.append(Shoal.svg("circle", { cx: xs[i].toFixed(1), cy: y.toFixed(1), r: 2.2, class: "dot c" + colour }));
  });
};

// From a shift to the round in which accuracy was back; to the next shift if it never was.
Shoal.shades = function (shifts, x, top, bottom, rounds) {
  var paths = { below: "", never: "" };
  shifts.forEach(function (shift, i) {
    if (shift.level === null || shift.lowest === null || shift.rounds === 0) return;
    var next = i + 1 < shifts.length ? shifts[i + 1].round : rounds;
    var end = shift.rounds === null ? next : shift.round + shift.rounds;
    paths[shift.rounds === null ? "never" : "below"] += "M" + x(shift.round).toFixed(1) + " " + top + "H" + Math.max(x(shift.round) + 0.7, x(end)).toFixed(1) + "V" + bottom + "H" + x(shift.round).toFixed(1) + "Z";
  });
  return Shoal.svg("g", { class: "shades" }, Object.keys(paths).map(function (name) { return Shoal.svg("path", { d: paths[name], class: name }); }));
};

// How deep and how long, in words, where there is room for words; the deepest come first.
Shoal.falls = function (shifts, series, g, options) {
  var group = Shoal.svg("g", { class: "falls" }), taken = [];
  var deep = shifts.filter(function (s) { return s.fall >= 0.005 && s.low_round !== null; });
  deep.sort(function (a, b) { return b.fall - a.fall; });
  deep.slice(0, shifts.length > Shoal.MANY ? 10 : Shoal.MANY).forEach(function (shift) {
    var low = shift.lowest, at = g.x(shift.low_round);
    group.append(Shoal.svg("circle", { cx: at, cy: g.y(low), r: 3.2, class: "low" }));
    var right = at > g.x(options.rounds) - 70, from = right ? at - 66 : at;
    if (taken.some(function (t) { return Math.abs(t - from) < 66; })) return;
    taken.push(from);
    var back = shift.rounds === null ? "never back" : shift.rounds === 0 ? "" : "back in " + shift.rounds;
    var place = { x: at + (right ? -7 : 7), "text-anchor": right ? "end" : "start" };
    var y = Math.min(g.y(low) - 2, g.y(options.domain[0]) - 18);
    group.append(Shoal.svg("text", Object.assign({ y: y }, place), "−" + Shoal.points(shift.fall)));
    group.append(Shoal.svg("text", Object.assign({ y: y + 12 }, place), back));
  });
  return group;
};

Shoal.spoken = function (options) {
  var parts = options.series.filter(function (s) { return !s.area; }).slice(0, 6).map(function (s) {
    var range = Shoal.extent([s.mean]), last = s.mean.filter(function (v) { return v !== null; }).pop();
    return range ? s.name + " from " + options.format(range[0]) + " to " + options.format(range[1]) + ", last " + options.format(last) : s.name + ": nothing measured";
  });
  return options.title + " over " + options.rounds + " rounds. " + parts.join("; ") + ". Arrow keys read single rounds; a table follows.";
};

Shoal.seriesTable = function (options) {
  var head = ["round"], span = options.span || 1;
  options.series.forEach(function (s) {
    if (!s.area) head.push(s.name);
    if (s.low) head.push(s.name + ", lowest", s.name + ", highest");
  });
  var rows = options.x.map(function (round, i) {
    var row = [span > 1 ? round + "–" + (round + span - 1) : round];
    options.series.forEach(function (s) {
      if (!s.area) row.push(options.format(s.mean[i]));
      if (s.low) row.push(options.format(s.low[i]), options.format(s.high[i]));
    });
    return row;
  });
  return { head: head, rows: rows };
};

// A tooltip that follows the pointer, a finger, or the arrow keys.
Shoal.pointer = function (plot, options, g, width, shown) {
  var tip = Shoal.el("div", { class: "tip", role: "status", hidden: "" });
  plot.append(tip);
  if (!plot.hasAttribute("tabindex")) {
    plot.setAttribute("tabindex", 0);
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", options.title + ": chart; arrow keys move through rounds");
  }
  var index = -1, cross = plot.querySelector(".cross"), m = Shoal.MARGIN;
  var hide = function () { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  var show = function (i) {
    index = Math.max(0, Math.min(options.x.length - 1, i));
    var at = g.x(options.x[index]);
    cross.setAttribute("x1", at); cross.setAttribute("x2", at); cross.setAttribute("visibility", "visible");
    tip.replaceChildren.apply(tip, Shoal.tipLines(options, index, shown()));
    tip.hidden = false;
    var left = at > width * 0.6 ? at - tip.offsetWidth - 12 : at + 12;
    tip.style.left = Math.max(0, Math.min(left, width - tip.offsetWidth)) + "px";
    tip.style.top = m.top + "px";
  };
  plot.onpointermove = function (event) {
    var box = plot.getBoundingClientRect(), at = (event.clientX - box.left) * (width / box.width);
    var round = ((at - m.left) / (width - m.left - m.right)) * options.rounds;
    var nearest = 0;
    options.x.forEach(function (r, i) { if (Math.abs(r - round) < Math.abs(options.x[nearest] - round)) nearest = i; });
    show(nearest);
  };
  plot.onpointerleave = hide;
  plot.onblur = hide;
  plot.onkeydown = function (event) {
    var far = event.shiftKey ? 10 : 1;
    var moves = { ArrowRight: index + far, ArrowLeft: index - far, Home: 0, End: options.x.length - 1 };
    if (event.key === "Escape") hide();
    else if (event.key in moves) { event.preventDefault(); show(moves[event.key]); }
  };
};

Shoal.tipLines = function (options, index, series) {
  var round = options.x[index], span = options.span || 1;
  var lines = [Shoal.el("b", {}, "round " + round + (span > 1 ? "–" + (round + span - 1) : ""))];
  series.slice(0, 12).forEach(function (s) {
    var ends = s.low && s.low[index] !== null ? options.format(s.low[index]) + " to " + options.format(s.high[index]) : "";
    var text = s.name + ": " + (s.area ? ends : options.format(s.mean[index]) + (ends ? " (" + ends + ")" : ""));
    lines.push(Shoal.el("div", {}, [Shoal.el("i", { class: "key c" + s.colour }), text]));
  });
  if ((options.noticed || []).some(function (r) { return r >= round && r < round + span; })) lines.push(Shoal.el("div", { class: "what" }, "a detector noticed a shift"));
  (options.shifts || []).forEach(function (shift) {
    if (shift.round >= round && shift.round < round + span) {
      lines.push(Shoal.el("div", { class: "what" }, Shoal.shiftName(shift) + (shift.note ? ": " + shift.note : "")));
    }
  });
  return lines;
};

Shoal.legend = function (items) {
  return Shoal.el("ul", { class: "legend" }, items.map(function (item) {
    return Shoal.el("li", {}, [item.node || Shoal.el("i", { class: "key c" + item.colour + (item.area ? " box pale" : "") }), item.name]);
  }));
};
