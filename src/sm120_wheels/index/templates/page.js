"use strict";
(() => {
  const root = document.documentElement;
  const rows = [...document.querySelectorAll("tr.wheel")];
  const filter = document.getElementById("filter");
  root.classList.add("js");
  // The commands name this index by the address it was reached at, so that mirrors name themselves.
  if (location.protocol !== "file:") {
    for (const span of document.querySelectorAll(".base")) {
      span.textContent = new URL(document.body.dataset.up + span.dataset.path, location.href).href;
    }
  }
  for (const command of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy the ${command.querySelector(".name").textContent} command`);
    button.addEventListener("click", async () => {
      const said = (await copy(command.querySelector("code"))) ? "Copied" : "Press Ctrl+C";
      button.textContent = said;
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    command.append(button);
  }
  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      // No clipboard without https: select the text instead.
      getSelection().selectAllChildren(code);
      return document.execCommand("copy");
    }
  }
  const detail = (row) => document.getElementById(row.dataset.for);
  const opener = (row) => row.querySelector(".opener");
  function show(row, open) {
    detail(row).classList.toggle("shown", open);
    opener(row).textContent = open ? "Close" : "Install";
    opener(row).setAttribute("aria-expanded", String(open));
  }
  for (const row of rows) {
    show(row, false);
    row.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if ((link && !link.classList.contains("opener")) || String(getSelection())) return;
      event.preventDefault();
      const open = !detail(row).classList.contains("shown");
      show(row, open);
      history.replaceState(null, "", open ? `#${row.dataset.for}` : location.pathname + location.search);
    });
  }
  function follow() {
    const row = rows.find((r) => `#${r.dataset.for}` === location.hash);
    if (row) { show(row, true); row.scrollIntoView({ block: "center" }); }
  }
  addEventListener("hashchange", follow);
  if (!filter) return;
  const listed = [...document.querySelectorAll("ul.packages li")];
  const count = document.getElementById("count");
  const nothing = document.getElementById("nothing");
  document.getElementById("find").hidden = false;
  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (element) => words.every((word) => element.dataset.search.includes(word));
    let shown = 0;
    for (const row of rows) {
      row.hidden = !fits(row);
      detail(row).hidden = row.hidden;
      shown += row.hidden ? 0 : 1;
    }
    // A word that names no package is about the wheels: then the list of packages stays whole.
    const named = listed.some(fits);
    for (const item of listed) item.hidden = named && !fits(item);
    count.textContent = words.length ? `${shown} of ${rows.length}` : `${rows.length} shown`;
    nothing.hidden = shown > 0;
  }
  filter.addEventListener("input", () => {
    apply();
    const query = filter.value ? `?q=${encodeURIComponent(filter.value)}` : location.pathname;
    history.replaceState(null, "", query + location.hash);
  });
  document.getElementById("clear").addEventListener("click", () => {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
    filter.focus();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      filter.focus();
    }
  });
  filter.value = new URLSearchParams(location.search).get("q") ?? "";
  apply();
  follow();
})();
