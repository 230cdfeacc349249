// Pictures that go with the next message: picked, pasted or dropped, scaled to what the model can use, shown small.

import { make } from "/web/app.js";

const $ = (id) => document.getElementById(id);
const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/// Files up to this size that the model can use as they are go as they are.
const PLAIN_BYTES = 1 << 20;

/// What the server says that it can see; null is nothing.
let eye = null;
let attached = [];
let changed = () => {};

export function setEye(vision) {
  eye = vision;
  $("attach").hidden = !eye;
}

/// The pictures for the next message, which are then no longer attached.
export function takeAttached() {
  const taken = attached;
  attached = [];
  draw();
  return taken;
}

export const isAnyAttached = () => attached.length > 0;

export function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

const asAddress = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(reader.error));
  reader.readAsDataURL(blob);
});

/// A data: address of the picture with no more pixels than the model takes in.
async function prepared(file) {
  const bitmap = await createImageBitmap(file);
  const most = eye.max_tokens * eye.side_pixels ** 2;
  const shrink = Math.min(1, Math.sqrt(most / (bitmap.width * bitmap.height)));
  if (shrink === 1 && file.size <= PLAIN_BYTES) {
    bitmap.close();
    return asAddress(file);
  }
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * shrink));
  canvas.height = Math.max(1, Math.round(bitmap.height * shrink));
  const paper = canvas.getContext("2d");
  paper.fillStyle = "#fff";
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.imageSmoothingQuality = "high";
  paper.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.92);
}

export async function attach(files) {
  if (!eye) return notice("Only text can be sent: no vision encoder is open for this model (--vision-file FILE opens one).");
  for (const file of files) {
    if (!KINDS.includes(file.type)) {
      notice(`“${file.name}” is not a PNG, JPEG, WebP or GIF; other files cannot be sent.`);
      continue;
    }
    if (attached.length >= eye.max_pictures) return notice(`A message takes ${eye.max_pictures} pictures and no more.`);
    try {
      attached.push({ url: await prepared(file), name: file.name });
      notice("");
    } catch {
      notice(`“${file.name}” cannot be read; it may be damaged.`);
    }
  }
  draw();
}

/// Small views of pictures; with `remove`, each goes away when it is clicked.
export function thumbs(pictures, remove = null) {
  const one = (picture, index) => {
    const name = picture.name || `picture ${index + 1}`;
    if (!picture.url) return make("span", "gone", "a picture that is no longer kept");
    const image = make("img");
    image.src = picture.url;
    image.alt = name;
    if (!remove) return image;
    const button = make("button", "thumb", image, make("span", "", "✕"));
    button.type = "button";
    button.title = `Remove ${name}`;
    button.setAttribute("aria-label", `Remove ${name}`);
    button.addEventListener("click", () => remove(index));
    return button;
  };
  return make("div", "thumbs", ...pictures.map(one));
}

function draw() {
  const remove = (index) => {
    attached.splice(index, 1);
    draw();
    $("input").focus();
  };
  $("attached").replaceChildren(...(attached.length ? [thumbs(attached, remove)] : []));
  changed();
}

const filesOf = (transfer) => [...(transfer?.items ?? [])].filter((item) => item.kind === "file").map((item) => item.getAsFile());

export function startPictures(onChange) {
  changed = onChange;
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", async () => {
    const files = [...$("files").files];
    $("files").value = "";
    await attach(files);
    $("input").focus();
  });
  document.addEventListener("paste", (event) => {
    const files = filesOf(event.clipboardData);
    if (!files.length) return;
    event.preventDefault();
    attach(files);
  });
  document.addEventListener("dragover", (event) => {
    if ([...(event.dataTransfer?.items ?? [])].some((item) => item.kind === "file")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    const files = filesOf(event.dataTransfer);
    if (!files.length) return;
    event.preventDefault();
    attach(files);
  });
}
