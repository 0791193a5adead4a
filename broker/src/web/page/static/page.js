// The server sends what has changed, and htmx replaces it in the page. Without scripts the page is complete but static.
"use strict";

const button = document.getElementById("pause");
let paused = false;
let connection = null;

document.addEventListener("htmx:sse:before:message", (event) => {
  connection = event.detail.connection;
  if (paused) event.preventDefault();
});

if (button && document.querySelector("#updates")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    // A new stream begins with all live parts of the page.
    if (!paused) connection?.reader?.cancel();
  });
}

// Times of courses without a time zone are shown in the time zone of the browser.
const clock = new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit" });
const moment = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "long" });

function writeTimes() {
  for (const element of document.querySelectorAll("[data-clock], [data-moment], [data-title]")) {
    const { clock: shortly, moment: fully, title: hinted } = element.dataset;
    const text = shortly ? clock.format(Number(shortly)) : fully ? moment.format(Number(fully)) : null;
    // Only different text is written, because each change calls this function again.
    if (text && element.textContent !== text) element.textContent = text;
    const hint = hinted ?? (element.hasAttribute("title") ? shortly : null);
    const title = hint && moment.format(Number(hint));
    if (title && element.title !== title) element.title = title;
  }
}

writeTimes();
new MutationObserver(writeTimes).observe(document.body, { childList: true, characterData: true, subtree: true });
