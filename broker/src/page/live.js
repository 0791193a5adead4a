// Swaps the fragments that the server says have changed. Without this script the page is complete, only still.
"use strict";

const waiting = new Map();
let paused = false;

function show(id, html) {
  const element = document.getElementById(id);
  if (element && element.innerHTML !== html) element.innerHTML = html;
}

const source = new EventSource("live");
for (const section of document.querySelectorAll("main > section[id]")) {
  source.addEventListener(section.id, (event) => {
    if (paused) waiting.set(section.id, event.data);
    else show(section.id, event.data);
  });
}

const button = document.getElementById("pause");
button.hidden = false;
button.setAttribute("aria-pressed", "false");
button.addEventListener("click", () => {
  paused = !paused;
  button.setAttribute("aria-pressed", String(paused));
  if (!paused) {
    for (const [id, html] of waiting) show(id, html);
    waiting.clear();
  }
});
