"use strict";
// Fields that filter the rows of a table: every word has to be in the row.
(function () {
  function filtered(field, table, others) {
    const input = document.getElementById(field), rows = document.querySelectorAll(`#${table} tbody tr`);
    if (!input || !rows.length) return;
    const count = document.getElementById(field + "-count");
    const texts = [...rows].map((row) => row.textContent.toLowerCase());
    const choices = others.map((name) => document.getElementById(name)).filter(Boolean);

    function apply() {
      const words = [...input.value.toLowerCase().split(/\s+/), ...choices.map((c) => c.value.toLowerCase())].filter(Boolean);
      let shown = 0;
      rows.forEach((row, n) => {
        row.hidden = !words.every((word) => texts[n].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    }
    for (const each of [input, ...choices]) each.addEventListener("input", apply);
  }
  filtered("collectives-filter", "moves", []);
  filtered("arguments-filter", "argument-rows", ["arguments-purpose", "arguments-axis"]);
})();
