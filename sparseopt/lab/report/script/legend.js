// The legend: says which line is which, and switches runs, whole groups, and all groups that a search has found, on and off.

const MANY_GROUPS = 8; // from here on, a field to search in

function fillLegend(box, changed) {
  const groups = report.groups.map((group, number) => legendGroup(group, number, changed));
  const list = make("ul", { className: "groups" }, ...groups.map((group) => group.element));
  const refresh = () => groups.forEach((group) => group.refresh());
  const button = (textContent, on) => {
    const click = () => {
      groups.filter((group) => !group.element.hidden).forEach((group) => group.runs.forEach((run) => show(run, on)));
      refresh();
      changed();
    };
    return make("button", { type: "button", textContent, onclick: click });
  };
  box.append(make("div", { className: "controls" }, button("Show all", true), button("Hide all", false)));
  if (report.groups.length < report.runs.length) box.append(viewSwitch(changed));
  box.append(checkbox("Losses on a logarithmic scale", chosen.logarithmic, (on) => { chosen.logarithmic = on; changed(); }).label);
  if (groups.length > MANY_GROUPS) box.append(search(groups));
  box.append(list);
}

function show(run, on) {
  if (on) chosen.hidden.delete(run);
  else chosen.hidden.add(run);
}

function checkbox(text, checked, act, ...before) {
  const input = make("input", { type: "checkbox", checked });
  input.addEventListener("change", () => act(input.checked));
  return { input, label: make("label", {}, input, ...before, make("span", { textContent: text })) };
}

function viewSwitch(changed) {
  const option = (text, means) => {
    const input = make("input", { type: "radio", name: "view", checked: chosen.means === means });
    input.addEventListener("change", () => { chosen.means = means; changed(); });
    return make("label", {}, input, make("span", { textContent: text }));
  };
  const legend = make("legend", { className: "aside", textContent: "Lines" });
  return make("fieldset", {}, legend, option("every run", false), option("mean ± std over seeds", true));
}

function search(groups) {
  const input = make("input", { type: "search", placeholder: "Find a configuration" });
  input.setAttribute("aria-label", "Find a configuration");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const { element, text } of groups) element.hidden = !words.every((word) => text.includes(word));
  });
  return input;
}

function legendGroup(group, number, changed) {
  const set = (runs, on) => {
    runs.forEach((run) => show(run, on));
    refresh();
    changed();
  };
  const whole = checkbox(group.label, true, (on) => set(group.runs, on), lineKey(number));
  const runs = group.runs.map((run) => checkbox(report.runs[run].name, true, (on) => set([run], on)));
  const refresh = () => {
    group.runs.forEach((run, place) => { runs[place].input.checked = visible(run); });
    const shown = group.runs.filter(visible).length;
    whole.input.checked = shown > 0;
    whole.input.indeterminate = shown > 0 && shown < group.runs.length;
  };
  const element = make("li", {}, whole.label);
  const count = `${group.runs.length} ${group.runs.length === 1 ? "run" : "runs"}`;
  const inner = make("ul", {}, ...runs.map((run) => make("li", {}, run.label)));
  element.append(make("details", {}, make("summary", { textContent: count }), inner));
  const text = [group.label, ...group.runs.map((run) => report.runs[run].name)].join(" ").toLowerCase();
  return { element, refresh, text, runs: group.runs };
}
