// The server says what has changed and htmx puts it in place. Without scripts the page is complete, only still.
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
    // A new stream begins with everything.
    if (!paused) connection?.reader?.cancel();
  });
}
