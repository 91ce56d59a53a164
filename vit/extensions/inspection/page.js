"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const decoded = new Map();
let hovered = null;
let turn = 0;

// A grey PNG as rows of bytes.
function bytes(src) {
  if (!decoded.has(src)) {
    decoded.set(src, load(src).then((image) => {
      const canvas = document.createElement("canvas");
      canvas.width = image.width;
      canvas.height = image.height;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      const rgba = context.getImageData(0, 0, image.width, image.height).data;
      return { width: image.width, at: (row, column) => rgba[4 * (row * image.width + column)] };
    }));
  }
  return decoded.get(src);
}

function load(src) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = reject;
    image.src = src;
  });
}

function fill(select, names, preferred = names[0]) {
  const before = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.value = names.includes(before) ? before : preferred;
}

// From black over purple and orange to yellow, like matplotlib's inferno.
const RAMP = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];
function colour(value) {
  const place = (value / 255) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  const mixed = RAMP[low].map((c, i) => Math.round(c + (place - low) * (RAMP[low + 1][i] - c)));
  return `rgba(${mixed.join(",")},${(0.8 * value) / 255})`;
}

const current = () => data.images[Number($("image").value)];

async function draw() {
  const mine = ++turn;
  const image = current();
  const layer = image.layers[$("layer").value];
  const map = layer[$("head").value];
  const [photo, values] = await Promise.all([load(image.photo), bytes(map.src)]);
  if (mine !== turn) return; // a later choice is being drawn
  const [rows, columns] = image.grid;
  $("token").disabled = !map.prefix;
  const token = data.tokens.indexOf($("token").value);
  const centre = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const cell = hovered !== null ? hovered : map.prefix && token >= 0 ? null : centre;
  const query = cell === null ? token : map.prefix + cell;
  const view = $("view");
  [view.width, view.height] = image.size;
  const context = view.getContext("2d");
  context.drawImage(photo, 0, 0);
  context.globalCompositeOperation = "saturation"; // grey: all colour is the map's
  context.fillStyle = "gray";
  context.fillRect(0, 0, view.width, view.height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "rgba(163,163,163,0.43)"; // greys of 70 to 215
  context.fillRect(0, 0, view.width, view.height);
  for (let i = 0; i < rows * columns; i++) {
    context.fillStyle = colour(values.at(query, map.prefix + i));
    context.fillRect(...corner(image, i), image.cell, image.cell);
  }
  if (cell !== null) {
    const [x, y] = corner(image, cell);
    context.strokeStyle = "#00e5ff";
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, image.cell - 2, image.cell - 2);
  }
  const place = `${image.unit} in row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
  const from = cell === null ? `${data.tokens[token]} token` : place;
  const shares = data.tokens.slice(0, map.prefix).map(
    (name, i) => `${name} ${((100 * values.at(query, i)) / 255).toFixed(0)} %`);
  $("says").textContent = `from the ${from}` + (shares.length ? `; apart: ${shares.join(", ")}` : "");
}

function corner(image, cell) {
  const columns = image.grid[1];
  return [(cell % columns) * image.cell, Math.floor(cell / columns) * image.cell];
}

function choose() {
  const image = current();
  const attends = $("layer") !== null;
  if (attends) {
    const layers = Object.keys(image.layers);
    fill($("layer"), layers, layers.filter((name) => name.startsWith("layer ")).at(-1));
    fill($("head"), Object.keys(image.layers[$("layer").value]));
  }
  $("pictures").replaceChildren(...image.pictures.map(([name, src]) => {
    const figure = document.createElement("figure");
    const picture = new Image();
    picture.src = src;
    picture.alt = name;
    const caption = document.createElement("figcaption");
    caption.textContent = name;
    figure.append(picture, caption);
    return figure;
  }));
  if (attends) draw();
}

function point(event) {
  const image = current();
  const box = $("view").getBoundingClientRect();
  const x = Math.floor(((event.clientX - box.left) / box.width) * image.size[0] / image.cell);
  const y = Math.floor(((event.clientY - box.top) / box.height) * image.size[1] / image.cell);
  const inside = x >= 0 && y >= 0 && x < image.grid[1] && y < image.grid[0];
  const cell = inside ? y * image.grid[1] + x : null;
  if (cell !== hovered) {
    hovered = cell;
    draw();
  }
}

data.images.forEach((image, i) => {
  const name = image.answer ? `${image.name}: ${image.answer}` : image.name;
  $("image").append(new Option(name, String(i)));
});
$("image").addEventListener("change", () => { hovered = null; choose(); });
if ($("layer")) {
  fill($("token"), data.tokens.length ? data.tokens : ["centre patch"]);
  $("layer").addEventListener("change", choose);
  $("head").addEventListener("change", draw);
  $("token").addEventListener("change", draw);
  $("view").addEventListener("pointermove", point);
  $("view").addEventListener("pointerdown", point);
  $("view").addEventListener("pointerleave", () => { hovered = null; draw(); });
}
choose();
