// The start of the page: its frame is there at once, and what fills it comes behind, all at a time.
//
// `main.js` goes on from here. What it needs in the end is named here too, so that one file need not wait for another.

const NEEDED = ["dom", "format", "rounds", "words", "curves", "state", "stream", "frame", "nav", "header", "bars", "tiles", "waits"];

const fetched = [...NEEDED.map((name) => import(`./${name}.js`)), import("./main.js")];
Promise.all(fetched).catch((problem) => {
  const banner = document.getElementById("banner");
  banner.textContent = `The page did not load: ${problem.message}. Load it again.`;
  banner.className = "banner shown";
});
