// What the pointer, a finger or the arrow keys point at, in words.

const NEAREST = 6; // lines told at once

class Tooltip {
  constructor(box) {
    this.list = make("ol");
    this.head = make("p");
    this.element = make("div", { className: "tooltip", hidden: true }, this.head, this.list);
    this.dot = make("span", { className: "dot", hidden: true });
    this.element.setAttribute("role", "status");
    box.append(this.element);
  }

  hide() {
    this.element.hidden = this.dot.hidden = true;
  }

  // Tell the lines that are nearest to a height, from the top down, with the nearest one in bold.
  show(plot, drawn, place, height, written) {
    const there = drawn.lines
      .map((line, number) => ({ line, number, value: line.values[place] }))
      .filter(({ line, value }) => !line.edge && value !== null && value !== undefined)
      .map((entry) => ({ ...entry, y: plot.valToPos(entry.value, "y") }))
      .sort((a, b) => Math.abs(a.y - height) - Math.abs(b.y - height));
    if (!there.length) return this.hide();
    const told = there.slice(0, NEAREST).sort((a, b) => a.y - b.y);
    this.head.textContent = drawn.places(drawn.x[place]);
    this.list.replaceChildren(...told.map((entry) => this.#entry(entry, entry === there[0], written)));
    if (there.length > told.length) {
      this.list.append(make("li", { className: "more", textContent: `and ${there.length - told.length} more` }));
    }
    this.element.hidden = false;
    this.#put(plot, drawn, place, there[0]);
  }

  #entry({ line, value }, nearest, written) {
    const name = make("span", { textContent: line.name });
    const number = make("b", { textContent: written(value) });
    return make("li", { className: nearest ? "nearest" : "" }, lineKey(line.group), number, " ", name);
  }

  // Below the lines, so that it hides none of them; above, where the window ends below.
  #put(plot, drawn, place, { y, line }) {
    if (this.dot.parentNode !== plot.over) plot.over.append(this.dot);
    const x = plot.valToPos(drawn.x[place], "x");
    this.dot.hidden = false;
    this.dot.style.background = colour(lineOf(line.group).series);
    this.dot.style.transform = `translate(${x}px, ${y}px)`;
    const area = plot.over.getBoundingClientRect();
    const box = this.element.parentNode.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(0, Math.min(area.left - box.left + x - width / 2, box.width - width));
    const below = area.bottom + 6 + height <= innerHeight || area.top - 6 - height < 0;
    const top = below ? area.bottom + 6 : area.top - 6 - height;
    this.element.style.transform = `translate(${left}px, ${top - box.top}px)`;
  }
}
