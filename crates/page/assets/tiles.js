// Tiles: a few numbers in large, each with its name and what it means.

import { el, keyed, setText, show } from "./dom.js";

// A row of tiles; `set` takes { key, name, value, note }.
export class Tiles {
  constructor() {
    this.root = el("dl", { class: "tiles" });
  }

  set(tiles) {
    const create = () => el("div", { class: "tile" }, el("dt"), el("dd", { class: "value" }), el("dd", { class: "note" }));
    keyed(this.root, tiles, (tile) => tile.key, create, (element, tile) => {
      setText(element.children[0], tile.name);
      setText(element.children[1], tile.value);
      setText(element.children[2], tile.note ?? "");
      show(element.children[2], Boolean(tile.note));
    });
  }
}
