// Swaps the page's content when it changed. Without this script the page is complete, only still.
"use strict";

const source = new EventSource("capacity/live");
source.addEventListener("capacity", (event) => {
  document.getElementById("capacity").innerHTML = event.data;
});
