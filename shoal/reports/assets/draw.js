// Small helpers that every chart uses. Text only ever enters the page as text (textContent), so a
// name or a config with HTML in it is shown, not run.
"use strict";
var Shoal = window.Shoal || {};
window.Shoal = Shoal;

Shoal.SVG = "http://www.w3.org/2000/svg";
// The same margins in every chart over rounds: their x axes line up.
Shoal.MARGIN = { left: 58, right: 16, top: 22, bottom: 30 };

Shoal.set = function (node, attributes, children) {
  for (var key in attributes || {}) {
    if (attributes[key] !== null && attributes[key] !== undefined) node.setAttribute(key, attributes[key]);
  }
  [].concat(children === undefined || children === null ? [] : children).forEach(function (child) {
    node.append(child instanceof Node ? child : String(child));
  });
  return node;
};

// el("p", {class: "x"}, "text" or nodes): an HTML element
Shoal.el = function (tag, attributes, children) {
  return Shoal.set(document.createElement(tag), attributes, children);
};

Shoal.svg = function (tag, attributes, children) {
  return Shoal.set(document.createElementNS(Shoal.SVG, tag), attributes, children);
};

// ---- numbers as people read them ----
Shoal.percent = function (value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(1) + " %";
};

// The same on an axis, where digits after the point only take room.
Shoal.whole = function (value) {
  return Number((100 * value).toFixed(1)) + " %";
};

Shoal.points = function (value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(1);
};

Shoal.tenths = function (value) {
  return value === null || value === undefined ? "–" : String(Number(value.toFixed(1)));
};

Shoal.number = function (value) {
  if (value === null || value === undefined) return "–";
  var size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(4)));
};

Shoal.bytes = function (value) {
  if (value === null || value === undefined) return "–";
  var units = ["B", "kB", "MB", "GB", "TB", "PB"], i = 0;
  while (Math.abs(value) >= 1000 && i < units.length - 1) { value /= 1000; i++; }
  return (i === 0 ? value : Number(value.toPrecision(3))) + " " + units[i];
};

Shoal.seconds = function (value) {
  if (value === null || value === undefined) return "–";
  if (value < 120) return Number(value.toPrecision(3)) + " s";
  if (value < 7200) return (value / 60).toFixed(1) + " min";
  return (value / 3600).toFixed(1) + " h";
};

// ---- scales ----
Shoal.scale = function (from, to, begin, end) {
  var width = to - from || 1;
  return function (value) { return begin + ((value - from) / width) * (end - begin); };
};

// About `count` round numbers from low to high.
Shoal.ticks = function (low, high, count, whole) {
  var rough = (high - low || 1) / Math.max(1, count);
  var power = Math.pow(10, Math.floor(Math.log10(rough)));
  var step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map(function (m) { return m * power; })
    .find(function (s) { return s >= rough * 0.999; });
  if (whole) step = Math.max(1, Math.round(step));
  var out = [];
  for (var v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) {
    out.push(Number(v.toPrecision(12)));
  }
  return out;
};

Shoal.extent = function (lists) {
  var low = Infinity, high = -Infinity;
  lists.forEach(function (list) {
    (list || []).forEach(function (v) {
      if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); }
    });
  });
  return low <= high ? [low, high] : null;
};

// A path through the known values; a gap in the data is a gap in the line, unless it is sparse.
Shoal.path = function (xs, ys) {
  var out = "", pen = false;
  ys.forEach(function (y, i) {
    if (y === null) return;
    out += (pen ? "L" : "M") + xs[i].toFixed(1) + " " + y.toFixed(1);
    pen = true;
  });
  return out;
};

Shoal.area = function (xs, lows, highs) {
  var up = [], down = [];
  lows.forEach(function (low, i) {
    if (low === null || highs[i] === null) return;
    up.push(xs[i].toFixed(1) + " " + highs[i].toFixed(1));
    down.unshift(xs[i].toFixed(1) + " " + low.toFixed(1));
  });
  return up.length ? "M" + up.concat(down).join("L") + "Z" : "";
};

// ---- a figure: heading, drawing, and the same as a table ----
// options: title, text (a caption), label (what a screen reader says), draw(width) -> svg,
// table() -> {head, rows}, wide (default true). The drawing is made again when its width changes.
Shoal.figure = function (options) {
  var plot = Shoal.el("div", { class: "plot" });
  var heading = Shoal.el("h3", {}, options.title);
  var caption = Shoal.el("figcaption", {}, [heading]);
  if (options.text) caption.append(Shoal.el("p", {}, options.text));
  var figure = Shoal.el("figure", { class: "chart" + (options.className ? " " + options.className : "") }, [caption]);
  if (options.legend) figure.append(options.legend);
  figure.append(plot);
  if (options.table) figure.append(Shoal.details("The same as a table", options.table));
  var drawn = 0;
  figure.redraw = function (width) {
    drawn = width;
    plot.replaceChildren(options.draw(width));
    if (options.after) options.after(plot, width);
  };
  new ResizeObserver(function () {
    var width = Math.floor(plot.clientWidth);
    if (width > 0 && width !== drawn) figure.redraw(width);
  }).observe(plot);
  return figure;
};

// A table that is made when it is first opened: a thousand rows cost nothing until then.
Shoal.details = function (summary, table) {
  var details = Shoal.el("details", { class: "table" }, [Shoal.el("summary", {}, summary)]);
  details.addEventListener("toggle", function () {
    if (details.open && details.children.length === 1) {
      var made = table();
      details.append(Shoal.scroller(Shoal.table(made.head, made.rows)));
    }
  });
  return details;
};

Shoal.scroller = function (node) {
  return Shoal.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" }, [node]);
};

Shoal.table = function (head, rows, className) {
  var cells = function (tag, row) {
    return Shoal.el("tr", {}, row.map(function (cell, i) {
      return Shoal.el(i === 0 && tag === "td" ? "th" : tag, i === 0 && tag === "td" ? { scope: "row" } : {}, cell);
    }));
  };
  return Shoal.el("table", { class: className || "" }, [
    Shoal.el("thead", {}, [cells("th", head)]),
    Shoal.el("tbody", {}, rows.map(function (row) { return cells("td", row); })),
  ]);
};
