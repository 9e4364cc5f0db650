"use strict";
const { charts, config, hidden } = JSON.parse(document.getElementById("data").textContent);
const views = [];
const off = new Set(hidden);

function toRows(table) {
  const names = Object.keys(table);
  const columns = names.map((name) => {
    const column = table[name];
    return Array.isArray(column) ? column : column.codes.map((code) => column.values[code]);
  });
  return (columns[0] || []).map((_, i) => Object.fromEntries(names.map((name, j) => [name, columns[j][i]])));
}

async function draw(place) {
  const { view, tables } = charts[Number(place.dataset.chart)];
  const datasets = Object.fromEntries(Object.entries(tables).map(([name, table]) => [name, toRows(table)]));
  const options = { ast: true, renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };
  const drawn = await vegaEmbed(place, { ...view, datasets, config }, options);
  views.push(drawn.view);
  update(drawn.view);
}

function update(view) {
  try {
    view.signal("hidden", [...off]).runAsync();
  } catch {
    // a chart without groups
  }
}

const boxes = [...document.querySelectorAll("#groups input")];
function choose(changed) {
  for (const box of changed) {
    off[box.checked ? "delete" : "add"](box.value);
  }
  views.forEach(update);
}
boxes.forEach((box) => box.addEventListener("change", () => choose([box])));
for (const button of document.querySelectorAll("#groups button")) {
  button.addEventListener("click", () => {
    boxes.forEach((box) => { box.checked = button.dataset.all === "true"; });
    choose(boxes);
  });
}

const seen = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
    seen.unobserve(target);
    draw(target);
  }
}, { rootMargin: "400px" });
const places = [...document.querySelectorAll(".chart")];
places.slice(0, 12).forEach(draw);
places.slice(12).forEach((place) => seen.observe(place));
