// The world's timeline, and tables whose cells are coloured.
"use strict";

// Stops of cividis, a map that people with any colour vision read in the same order.
Shoal.CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

Shoal.heatColour = function (share) {
  var place = Math.max(0, Math.min(1, share)) * (Shoal.CIVIDIS.length - 1);
  var low = Math.min(Math.floor(place), Shoal.CIVIDIS.length - 2), part = place - low;
  var rgb = Shoal.CIVIDIS[low].map(function (c, i) { return Math.round(c + part * (Shoal.CIVIDIS[low + 1][i] - c)); });
  return { fill: "rgb(" + rgb.join(",") + ")", dark: rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 < 125 };
};

// options: title, text, rows, columns (names), values [[...]] (null: empty), format, shade(value)
// -> share of the colour map, rowsName, columnsName, texts ([[...]], instead of format(value))
Shoal.heat = function (options) {
  var longest = options.rows.reduce(function (n, r) { return Math.max(n, String(r).length); }, 4);
  var draw = function (width) {
    var left = Math.min(width * 0.36, 18 + 6.6 * longest), many = options.columns.length;
    var cell = Math.min(options.most || 92, (width - left - 8) / many);
    var tall = Math.max(options.least || 22, Math.min(34, cell * 0.5)), top = options.columnsName ? 40 : 24;
    var height = top + tall * options.rows.length + 6;
    var svg = Shoal.svg("svg", { viewBox: "0 0 " + width + " " + height, width: "100%", role: "img", class: "heat",
      "aria-label": options.title + ". The table that follows has every cell." });
    if (options.columnsName) svg.append(Shoal.svg("text", { x: left, y: 14, class: "quiet" }, options.columnsName));
    var every = Math.ceil(46 / cell);
    options.columns.forEach(function (name, j) {
      if (j % every) return;
      var label = String(name), fits = Math.max(3, Math.floor((cell * every) / 6.2));
      svg.append(Shoal.svg("text", { x: left + cell * (j + 0.5), y: top - 8, "text-anchor": "middle" }, label.length > fits ? label.slice(0, fits - 1) + "…" : label));
    });
    options.rows.forEach(function (name, i) {
      var y = top + tall * i;
      if (tall >= 11 || i % Math.ceil(11 / tall) === 0) {
        var fits = Math.max(4, Math.floor((left - 10) / 6.2)), label = String(name);
        svg.append(Shoal.svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end" }, label.length > fits ? label.slice(0, fits - 1) + "…" : label));
      }
      options.columns.forEach(function (column, j) { Shoal.heatCell(svg, options, i, j, left + cell * j, y, cell, tall); });
    });
    return svg;
  };
  return Shoal.figure({ title: options.title, text: options.text, draw: draw, className: options.className, table: function () {
    var head = [options.rowsName || ""].concat(options.columns);
    return { head: head, rows: options.rows.map(function (name, i) {
      return [name].concat(options.columns.map(function (_, j) { return Shoal.cellText(options, i, j) || "–"; }));
    }) };
  } });
};

Shoal.cellText = function (options, i, j) {
  var value = options.values[i][j];
  if (value === null || value === undefined) return "";
  return options.texts ? options.texts[i][j] : options.format(value);
};

Shoal.heatCell = function (svg, options, i, j, x, y, wide, tall) {
  var value = options.values[i][j];
  if (value === null || value === undefined) return;
  var colour = Shoal.heatColour(options.shade(value)), text = Shoal.cellText(options, i, j);
  var title = options.rows[i] + ", " + options.columns[j] + ": " + text;
  svg.append(Shoal.svg("rect", { x: x, y: y, width: Math.max(0.5, wide - (wide > 6 ? 1 : 0)), height: tall - (tall > 8 ? 1 : 0), fill: colour.fill, class: "cell" },
    [Shoal.svg("title", {}, title)]));
  if (wide >= 34 && tall >= 16 && !options.plain) {
    svg.append(Shoal.svg("text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", class: colour.dark ? "on-dark" : "on-light" }, text));
  }
};

// ---- who is here, what changed ----
// What a member is called; a run of neighbours (last is included) by its ends.
Shoal.who = function (page, first, last) {
  var name = function (m) { return page.names ? page.names[m] : String(m); };
  return last === undefined || last === first ? name(first) : name(first) + " – " + name(last);
};

Shoal.timeline = function (page) {
  var t = page.timeline, m = Shoal.MARGIN, one = t.members <= t.rows.length;
  var tall = Math.max(4, Math.min(14, 200 / t.rows.length)), height = m.top + tall * t.rows.length + m.bottom;
  var draw = function (width) {
    var x = Shoal.scale(0, t.rounds, m.left, width - m.right);
    var svg = Shoal.svg("svg", { viewBox: "0 0 " + width + " " + height, width: "100%", role: "img", class: "timeline",
      "aria-label": "Who is here: " + t.members + " members over " + t.rounds + " rounds. A table of the changes follows." });
    svg.append(Shoal.hatch());
    t.rows.forEach(function (row, i) {
      Shoal.stretches(t, i).forEach(function (s) { Shoal.stretch(svg, page, s, row, x, m.top + tall * i, tall); });
    });
    var y = Shoal.scale(0, t.rows.length, m.top, m.top + tall * t.rows.length);
    svg.append(Shoal.axes(width, height, x, t.rounds, y, [], String));
    Shoal.memberNames(svg, page, y);
    svg.append(Shoal.marks(page.shifts, x, m.top, m.top + tall * t.rows.length));
    if (page.rounds.done < t.rounds) {
      var now = x(page.rounds.done);
      svg.append(Shoal.svg("rect", { x: now, width: Math.max(0, width - m.right - now), y: m.top, height: tall * t.rows.length, class: "to-come" }, [Shoal.svg("title", {}, "not played yet")]));
    }
    return svg;
  };
  return Shoal.figure({
    title: "Who is here, and what changed", draw: draw, legend: Shoal.timelineLegend(page),
    text: one ? "" : "Rows are runs of neighbouring members; the paler, the fewer of them are here.",
    table: function () {
      return { head: ["round", "what changed", "told", "note"], rows: page.shifts.map(function (s) {
        return [s.round, Shoal.shiftName(s), s.announced ? "announced" : "hidden", s.note];
      }) };
    },
  });
};

Shoal.memberNames = function (svg, page, y) {
  var t = page.timeline, step = Math.max(1, Math.ceil(t.rows.length / 8));
  t.rows.forEach(function (row, i) {
    if (i % step === 0) svg.append(Shoal.svg("text", { x: Shoal.MARGIN.left - 8, y: y(i + 0.5) + 4, "text-anchor": "end", class: "quiet" }, page.names ? Shoal.short(Shoal.who(page, row[0]), 9) : Shoal.number(row[0])));
  });
  svg.append(Shoal.svg("text", { x: Shoal.MARGIN.left - 8, y: Shoal.MARGIN.top - 8, class: "quiet", "text-anchor": "end" }, "member"));
};

Shoal.short = function (text, most) { return text.length > most ? text.slice(0, most - 1) + "…" : text; };

Shoal.hatch = function () {
  return Shoal.svg("defs", {}, [Shoal.svg("pattern", { id: "shoal-hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    [Shoal.svg("rect", { width: 1.6, height: 5, class: "hatch" })])]);
};

// Neighbouring columns of a row in the same state are one rectangle.
Shoal.stretches = function (t, row) {
  var out = [];
  t.columns.forEach(function (start, j) {
    var stage = 0;
    t.stages.forEach(function (s, k) { if (s.start <= start) stage = k; });
    var state = [t.here[row][j], t.swapped[row][j], stage].join(" "), end = j + 1 < t.columns.length ? t.columns[j + 1] : t.rounds;
    var last = out[out.length - 1];
    if (last && last.state === state) last.end = end;
    else out.push({ state: state, here: +t.here[row][j], swapped: +t.swapped[row][j], stage: stage, start: start, end: end });
  });
  return out.filter(function (s) { return s.here > 0; });
};

Shoal.stretch = function (svg, page, s, row, x, y, tall) {
  var t = page.timeline, name = row[1] - row[0] === 1 ? "member " + Shoal.who(page, row[0]) : "members " + Shoal.who(page, row[0]) + " to " + Shoal.who(page, row[1] - 1);
  var since = t.dates ? " (from " + t.dates[t.columns.indexOf(s.start)] + ")" : "";
  var title = name + ", rounds " + s.start + " to " + (s.end - 1) + since + (s.here < 9 ? ", about " + Math.round((s.here / 9) * 100) + " % here" : "");
  var stage = t.stages[s.stage];
  if (t.stages.length > 1) title += ", " + stage.name;
  if (s.swapped) title += ", labels swapped" + (s.swapped < 9 ? " for some" : "");
  var box = { x: x(s.start), y: y, width: Math.max(0.5, x(s.end) - x(s.start)), height: tall - (tall > 5 ? 1 : 0.4) };
  svg.append(Shoal.svg("rect", Object.assign({ class: "here s" + (s.stage % 7), "fill-opacity": Math.max(0.15, s.here / 9) }, box), [Shoal.svg("title", {}, title)]));
  if (s.swapped) svg.append(Shoal.svg("rect", Object.assign({ fill: "url(#shoal-hatch)", "fill-opacity": Math.max(0.35, s.swapped / 9), "pointer-events": "none" }, box)));
};

Shoal.timelineLegend = function (page) {
  var t = page.timeline, items = [], many = t.stages.length > 1;
  (many ? t.stages : [{ name: "here" }]).slice(0, 12).forEach(function (s, i) {
    items.push({ node: Shoal.el("i", { class: "key box s" + (i % 7) }), name: many ? "stage " + i + ": " + s.name : "here" });
  });
  if (t.swapped.some(function (row) { return /[1-9]/.test(row); })) items.push({ node: Shoal.el("i", { class: "key box striped" }), name: "labels swapped" });
  var kinds = [];
  page.shifts.forEach(function (s) { s.kinds.forEach(function (k) { if (kinds.indexOf(k) < 0) kinds.push(k); }); });
  kinds.forEach(function (k) {
    var kind = Shoal.KINDS[k] || { sign: "•", word: k };
    items.push({ node: Shoal.el("b", { class: "sign kind-" + k }, kind.sign), name: kind.word });
  });
  if (page.shifts.some(function (s) { return !s.announced; })) items.push({ node: Shoal.el("i", { class: "key dotted" }), name: "nobody was told" });
  return Shoal.legend(items);
};
