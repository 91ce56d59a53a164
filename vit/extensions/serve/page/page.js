// Sends each picture to the server on its own, and shows the answers. All text goes in as text.

const AT_ONCE = 4; // requests
const TRIES = 6; // of a request for which the server is too busy
const TOP = 5; // classes of a picture
const TOKEN = `token of ${location.pathname}`; // its name in the storage of this tab
const COLUMNS = ["image", "class", "probability", "labels", "set", "unknown", "error"];

const one = (selector) => document.querySelector(selector);
const percent = (probability) => `${(100 * probability).toFixed(1)}\u00a0%`;
const round = (share) => `${Number((100 * share).toFixed(3))}\u00a0%`; // of a number such as 0.9
const element = (tag, className = "", textContent = "") =>
  Object.assign(document.createElement(tag), { className, textContent });

let model; // what the server says of it
let columns; // of the table and of the file, as `vit classify --out` names them
const pictures = []; // in order: the file, the row that answers it, and their elements
const lanes = Array(AT_ONCE).fill(Promise.resolve()); // of requests: promises of the last ones
let signedIn = null; // a promise, while the form is open

function takeToken() {
  const values = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  if (!values.has("token")) return;
  history.replaceState(null, "", location.pathname + location.search);
  useToken(values.get("token"));
}

function useToken(token) {
  sessionStorage.setItem(TOKEN, token);
  one("#sign-in").hidden = true;
  one("#sign-in").reset();
  signedIn?.resolve();
  signedIn = null;
}

function askToken(reason) {
  one("#refused").textContent = reason;
  one("#sign-in").hidden = false;
  one("#token").focus();
  signedIn ??= Promise.withResolvers();
}

// The response of the server, or an Error with its reason to refuse.
async function ask(address, file, tell) {
  if (file.size > model.max_bytes) throw new Error("The file is larger than this server takes");
  const body = await file.arrayBuffer();
  for (let tries = 1; ; ) {
    await signedIn?.promise;
    const token = sessionStorage.getItem(TOKEN);
    const headers = { "Content-Type": "application/octet-stream" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(address, { method: "POST", body, headers }).catch(() => null);
    if (response?.ok) return response;
    const { error } = (await response?.json().catch(() => null)) ?? {};
    if (response?.status === 401) {
      // Otherwise another request was refused first, and the token is new.
      if (token === sessionStorage.getItem(TOKEN)) askToken(token ? "This token is wrong." : "");
    } else if (response?.status === 503 && tries < TRIES) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      tell(`The server is busy; next try in ${seconds} s`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      tries += 1;
    } else throw new Error(error ?? `No answer: ${response?.status ?? "the server is away"}`);
  }
}

function add(files) {
  const first = pictures.length;
  for (const file of files) {
    const picture = { file, card: element("article"), line: element("tr") };
    picture.answer = element("div", "", "Waiting");
    picture.card.append(view(file), element("p", "name small muted", file.name), picture.answer);
    one("#cards").append(picture.card);
    one("tbody").append(picture.line);
    const lane = pictures.push(picture) % AT_ONCE;
    lanes[lane] = lanes[lane].finally(() => classify(picture));
    show(picture, "");
  }
  pictures[first]?.card.scrollIntoView({ block: "nearest" });
}

async function classify(picture) {
  const query = new URLSearchParams({ top: Math.min(TOP, model.classes), ...model.options });
  const tell = (text) => picture.answer.replaceChildren(text);
  tell("Classifying");
  try {
    const response = await ask(`classify?${query}`, picture.file, tell);
    [picture.row] = await response.json();
  } catch ({ message }) {
    picture.row = { error: message };
  }
  picture.answer.replaceChildren(...described(picture.row));
  picture.card.firstChild.disabled = !picture.row.top; // nothing to explain
  show(picture, `${picture.file.name}: ${title(picture.row)}.`);
}

// The row of the table, and the line above the pictures, which screen readers read out.
function show(picture, news) {
  const texts = cells(picture, ", ", ["yes", "no"]);
  if (texts[2]) texts[2] = percent(texts[2]);
  picture.line.replaceChildren(...texts.map((text) => element("td", "", text)));
  const answered = pictures.filter(({ row }) => row).length;
  one("[role=status]").textContent = `${answered} of ${pictures.length} answered. ${news}`;
  one("#clear").hidden = false;
  one("#all").hidden = pictures.length < 2;
}

function title({ error, unknown, labels, top }) {
  if (error) return error;
  if (unknown) return "None of these";
  return labels ? labels.join(", ") || "No label" : top[0].class;
}

// Elements that say what the server answered.
function described(row) {
  if (row.error) return [element("p", "wrong", row.error)];
  const bars = element("ul");
  for (const { class: name, probability } of row.top) {
    const item = bars.appendChild(element("li"));
    item.append(element("i"), element("span", "", name), element("span", "", percent(probability)));
    item.firstChild.style.width = `${100 * probability}%`;
  }
  const heading = element("p", row.unknown ? "headline wrong" : "headline", title(row));
  if (row.unknown) {
    const than = `${round(model.options.unknown)} of the validation pictures. Most alike:`;
    return [heading, element("p", "small", `Less like the classes than ${than}`), bars];
  }
  if (!row.set) return [heading, bars];
  const such = `Such sets hold the true class in ${round(model.options.coverage)} of pictures.`;
  return [heading, bars, element("p", "small scroll", `Set: ${row.set.join(", ")}. ${such}`)];
}

// The picture; if the model can be explained, a button that shows the map, and goes back.
function view(file) {
  const frame = element(model.explain ? "button" : "div", "picture");
  const image = frame.appendChild(element("img"));
  Object.assign(image, { alt: file.name, src: URL.createObjectURL(file) });
  image.onerror = () => image.replaceWith(element("span", "blank", "no preview"));
  if (!model.explain) return frame;
  const show = `Show ${model.explain}`;
  const map = Object.assign(element("img"), { alt: model.explain, hidden: true });
  const label = element("span", "switch", show);
  const tell = (text) => (label.textContent = text);
  frame.append(map, label);
  frame.onclick = async () => {
    try {
      if (!map.src) {
        tell("Asking");
        const response = await ask("explain", file, tell);
        map.src = URL.createObjectURL(await response.blob());
      }
      map.hidden = !map.hidden;
      tell(map.hidden ? show : "Show the picture");
    } catch ({ message }) {
      tell(message);
    }
  };
  return frame;
}

function cells({ file, row }, separator, [yes, no]) {
  const values = { ...row?.top?.[0], ...row, image: file.name };
  return columns.map((name) => {
    const value = values[name] ?? "";
    if (Array.isArray(value)) return value.join(separator);
    return typeof value === "boolean" ? (value ? yes : no) : String(value);
  });
}

// RFC 4180; no spreadsheet runs a cell as a formula.
function csvCell(text) {
  const safe = text.replace(/^[=+\-@\t\r\n]/, "'$&");
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save() {
  const rows = [columns, ...pictures.map((picture) => cells(picture, "|", ["True", "False"]))];
  const text = rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
  const file = new Blob(["\ufeff", text], { type: "text/csv" }); // the mark is for Excel
  const href = URL.createObjectURL(file);
  Object.assign(element("a"), { href, download: "answers.csv" }).click();
}

async function start() {
  model = await (await fetch("health")).json();
  const { classes, multilabel, options } = model;
  const several = multilabel ? ", several of which can be in one picture" : "";
  one("#model").textContent = `The model on this server knows ${classes} classes${several}.`;
  const absent = { labels: !multilabel, set: !options.coverage, unknown: !options.unknown };
  columns = COLUMNS.filter((name) => !absent[name]);
  const titles = columns.map((name) => name.replace("unknown", "none of these"));
  one("thead tr").append(...titles.map((name) => element("th", "", name)));
  one("#drop").hidden = false;
  if (model.token && !sessionStorage.getItem(TOKEN)) askToken("");
  document.onpaste = (event) => add(event.clipboardData.files);
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => {
    event.preventDefault();
    add(event.dataTransfer.files);
  };
}

takeToken();
onhashchange = takeToken;
start().catch(() => (one("#model").textContent = "No answer: load the page again"));
one("#clear").onclick = () => location.reload();
one("#save").onclick = save;
one("#sign-in").onsubmit = (event) => {
  event.preventDefault();
  useToken(one("#token").value);
};
one("#drop").onchange = ({ target }) => {
  add(target.files);
  target.value = ""; // the same picture can be chosen again
};
