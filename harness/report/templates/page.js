"use strict";
// Texts of models and environments are only ever set as text, never as markup.
const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- checks ----------------------------------------------------------------

function filterChecks() {
  const form = byId("check-filters");
  if (!form) return;
  const rows = [...byId("check-rows").rows];
  const texts = new Map(rows.map((row) => [row, (row.id + " " + row.cells[1].textContent).toLowerCase()]));
  const apply = () => {
    const { outcome, gym, text } = Object.fromEntries(new FormData(form));
    let shown = 0;
    for (const row of rows) {
      const kept =
        (!outcome || row.dataset.outcome === outcome) &&
        (!gym || row.dataset.gyms.split(" ").includes(gym)) &&
        texts.get(row).includes(text.trim().toLowerCase());
      row.hidden = !kept;
      shown += kept ? 1 : 0;
    }
    byId("check-count").textContent = `${shown} of ${rows.length} checks`;
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}

// A link to a check must find it, whatever the filters hide.
function revealTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden) {
    byId("check-filters").reset();
    byId("check-filters").dispatchEvent(new Event("input"));
  }
  const details = target.querySelector("details");
  if (target.matches("tr") && details) details.open = true;
  target.scrollIntoView();
}

// ---- rollouts --------------------------------------------------------------

const KINDS = [
  ["prompt", "prompt"],
  ["trained", "sampled, trained"],
  ["untrained", "sampled, not trained"],
  ["observation", "observation"],
  ["framing", "framing of the chat template"],
  ["external", "observation or framing, not told apart"],
  ["leaked", "NOT SAMPLED, BUT TRAINED"],
];
const PAGE = 50;
const UNLIKELY = Math.log(0.5);

class Viewer {
  constructor(form, runs) {
    this.form = form;
    this.runs = runs;
    this.page = 0;
    this.current = null;
    form.addEventListener("input", (event) => this.changed(event.target.name));
    form.addEventListener("submit", (event) => event.preventDefault());
    byId("viewer-back").addEventListener("click", () => this.turnTo(this.page - 1));
    byId("viewer-on").addEventListener("click", () => this.turnTo(this.page + 1));
    form.hidden = byId("viewer").hidden = false;
    this.changed("run");
  }

  get run() {
    return this.runs[Number(this.form.elements.run.value)];
  }

  changed(field) {
    if (field === "logprobs") {
      if (this.current) this.show(this.current);
      return;
    }
    if (field === "run") {
      const families = [...new Set(this.run.rollouts.map((each) => each.family).filter(Boolean))].sort();
      this.form.elements.family.replaceChildren(new Option("all", ""), ...families.map((name) => new Option(name, name)));
      this.current = null;
    }
    this.found = this.run.rollouts.filter((each) => this.passes(each));
    this.turnTo(0);
    if (this.found.length && !this.found.includes(this.current)) this.show(this.found[0]);
    if (!this.found.length) {
      this.current = null;
      byId("viewer-rollout").replaceChildren();
    }
  }

  passes(each) {
    const { state, family, from, to, text } = Object.fromEntries(new FormData(this.form));
    if (state === "cut" ? !(each.truncated || each.cut) : state && each.state !== state) return false;
    if (family && each.family !== family) return false;
    const within = (step) => (!from || step >= Number(from)) && (!to || step <= Number(to));
    if ((from || to) && !each.steps.some(within)) return false;
    if (!text) return true;
    each.words ??= [each.number, each.task, each.outcome, each.answer, ...(each.calls ?? []).flat()].join(" ").toLowerCase();
    return each.words.includes(text.trim().toLowerCase());
  }

  turnTo(page) {
    const pages = Math.max(1, Math.ceil(this.found.length / PAGE));
    this.page = Math.min(Math.max(0, page), pages - 1);
    byId("viewer-count").textContent = `${this.found.length} of ${this.run.rollouts.length} rollouts; training ${this.run.outcome}`;
    byId("viewer-page").textContent = `page ${this.page + 1} of ${pages}`;
    byId("viewer-back").disabled = this.page === 0;
    byId("viewer-on").disabled = this.page === pages - 1;
    byId("viewer-rows").replaceChildren(...this.found.slice(this.page * PAGE, (this.page + 1) * PAGE).map((each) => this.row(each)));
    this.mark();
  }

  row(each) {
    const row = element("tr");
    row.dataset.number = each.number;
    const head = element("th");
    head.scope = "row";
    const button = element("button", "", each.number);
    button.type = "button";
    button.setAttribute("aria-label", `Show rollout ${each.number}`);
    button.addEventListener("click", () => {
      this.show(each);
      byId("viewer-rollout").focus();
    });
    head.append(button);
    const state = element("td");
    state.append(element("span", "outcome " + each.state.replaceAll(" ", "-"), each.state === "success" ? "success" : (each.outcome ?? each.state)));
    row.append(head, ...[each.steps.join(", ") || "-", each.group ?? "-", each.family || "-"].map((text) => element("td", "", text)));
    row.append(state, element("td", "", number(each.reward, 3)), element("td", "", number(each.advantage, 3)));
    return row;
  }

  mark() {
    for (const row of byId("viewer-rows").rows) {
      if (this.current && Number(row.dataset.number) === this.current.number) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  show(each) {
    this.current = each;
    this.mark();
    const logprobs = this.form.elements.logprobs.checked;
    const shown = byId("viewer-rollout");
    shown.replaceChildren(
      element("h3", "", `Rollout ${each.number}` + (each.task ? `, task ${each.task}` : "")),
      facts(each),
      ...this.turns(each, logprobs),
      ...calls(each),
    );
  }

  turns(each, logprobs) {
    return each.segments.map(([kind, start, end, sampler, loss]) => {
      const [name, label] = KINDS[kind];
      const turn = element("div", "turn");
      turn.append(element("span", "label", `${label}, ${end - start} ${end - start === 1 ? "id" : "ids"}`));
      const shown = logprobs && sampler.length > 0;
      const segment = element("div", `seg ${name}${shown ? " pairs" : ""}`);
      each.ids.slice(start, end).forEach((id, place) => {
        const token = element("span", "tok", this.run.tokens[id] ?? ` ${id} `);
        token.title = `id ${id}`;
        segment.append(shown ? pair(token, id, sampler[place], loss[place]) : token);
      });
      turn.append(segment);
      return turn;
    });
  }
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "none";
  return typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value);
}

// What the sampler says of an id, and below it what the loss says, where that is another figure.
function pair(token, id, sampler, loss) {
  const made = element("span", "pair" + (typeof sampler === "number" && sampler < UNLIKELY ? " unlikely" : ""));
  const digits = (value) => (typeof value === "number" ? value.toFixed(3) : String(value ?? "not drawn"));
  token.textContent = token.textContent.replaceAll("\n", "\u21b5");
  made.append(token, element("small", "", digits(sampler)));
  if (loss !== null && digits(loss) !== digits(sampler)) made.append(element("small", "loss", `loss ${digits(loss)}`));
  made.append(element("small", "id", `id ${id}`));
  return made;
}

function facts(each) {
  const list = element("dl", "facts");
  const weighed = (weight) => (weight === 0 ? ", reported only" : weight === null || weight === 1 ? "" : `, weight ${number(weight)}`);
  const rewards = each.rewards.map(([name, value, weight]) => `${name} ${number(value)}${weighed(weight)}`);
  const parts = Object.entries(each.parts ?? {}).map(([name, value]) => `${name} ${number(value)}`);
  const pairs = [
    ["verdict", each.outcome ? `${each.outcome}${each.truncated ? ", cut by a budget" : ""}` : "no episode on record"],
    ["reward of the gym", number(each.reward)],
    ["optimizer steps", each.steps.join(", ") || "never trained"],
    ["rewards by column", rewards.join("; ") || "none"],
    ["advantage", number(each.advantage)],
    ["milestones", parts.join(", ") || "none"],
    ["held against", each.replay ?? "nothing"],
    ["final answer", each.answer ?? "none"],
  ];
  if (each.cut) pairs.push(["sampled ids cut off", number(each.cut)]);
  for (const [name, value] of pairs) {
    const entry = element("div");
    entry.append(element("dt", "", name), element("dd", "", value));
    list.append(entry);
  }
  return list;
}

function calls(each) {
  if (!each.calls?.length) return [];
  const table = element("table");
  const head = element("tr");
  head.append(...["tool", "arguments", "observation"].map((name) => Object.assign(element("th", "", name), { scope: "col" })));
  const body = element("tbody");
  for (const [tool, given, text, isError] of each.calls) {
    const row = element("tr");
    const observation = element("td");
    observation.append(element("code", "", text));
    if (isError) observation.append(element("span", "outcome failed", "error"));
    const cell = element("td");
    cell.append(element("code", "", given));
    row.append(element("td", "", tool), cell, observation);
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return [element("h4", "", "Tool calls as the environment received them"), wrapped(table)];
}

function wrapped(table) {
  const made = element("div", "scroll");
  made.tabIndex = 0;
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", "Tool calls");
  made.append(table);
  return made;
}

// ---- tables with a filter of words ------------------------------------------

function filterRows() {
  for (const form of document.querySelectorAll("form[data-rows]")) {
    const rows = [...byId(form.dataset.rows).rows];
    const apply = () => {
      const { text, only } = Object.fromEntries(new FormData(form));
      for (const row of rows)
        row.hidden = !row.textContent.toLowerCase().includes((text ?? "").trim().toLowerCase()) || (only && !row.dataset.marks.split(" ").includes(only));
      form.querySelector("[role=status]").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    };
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }
}

filterChecks();
filterRows();
if (byId("viewer-data")) new Viewer(byId("viewer-filters"), JSON.parse(byId("viewer-data").textContent).runs);
addEventListener("hashchange", revealTarget);
// A link that was followed before changes no hash, and its row may have been filtered away since.
addEventListener("click", (event) => {
  if (event.target.closest?.('a[href^="#"]')?.hash === location.hash && location.hash) revealTarget();
});
revealTarget();
