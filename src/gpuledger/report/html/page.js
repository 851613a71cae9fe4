"use strict";
(() => {
  const tip = document.getElementById("tip");

  // ---- values of marks, under the mouse and with the arrow keys
  function show(mark, x, y) {
    const name = document.createElement("strong");
    name.textContent = `${mark.dataset.label}: `;
    tip.replaceChildren(name, document.createTextNode(mark.dataset.text));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
  }
  function hide() { tip.hidden = true; }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const marks = [...figure.querySelectorAll(".mark")];
    const named = marks.filter((mark) => !mark.dataset.silent);
    let current = -1;
    function leave() {
      hide();
      marks.forEach((mark) => mark.classList.remove("current"));
    }
    for (const mark of marks) {
      mark.addEventListener("mousemove", (event) => show(mark, event.clientX, event.clientY));
      mark.addEventListener("mouseleave", hide);
    }
    figure.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { leave(); return; }
      if (step === undefined || event.target !== figure || named.length === 0) return;
      event.preventDefault();
      leave();
      current = (current + step + named.length) % named.length;
      named[current].classList.add("current");
      const box = named[current].getBoundingClientRect();
      show(named[current], box.left + box.width / 2, box.top + box.height / 2);
    });
    figure.addEventListener("blur", leave);
  }

  // ---- tables: sort by a column; the ledger: show what matches
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.value);
  };
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  for (const ledger of document.querySelectorAll(".ledger, .sortable")) {
    const table = ledger.querySelector("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      header.querySelector("button")?.addEventListener("click", () => {
        const numeric = header.classList.contains("number");
        const before = header.getAttribute("aria-sort");
        const down = before === null || before === "none" ? numeric : before === "ascending";
        headers.forEach((other) => other.setAttribute("aria-sort", "none"));
        header.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        rows.sort((a, b) => sign * compare(value(a, column), value(b, column)));
        body.append(...rows);
      });
    });

    const words = ledger.querySelector("input");
    if (words === null) continue;
    const category = ledger.querySelector("select");
    const output = ledger.querySelector("output");
    function filter() {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let bytes = 0n;
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const matches = wanted.every((word) => text.includes(word))
          && (!category.value || row.dataset.category === category.value);
        row.hidden = !matches;
        if (matches) { shown += 1; bytes += BigInt(row.dataset.bytes); }
      }
      const gib = (Number(bytes) / 2 ** 30).toFixed(2);
      output.textContent = `${shown} of ${rows.length} entries, ${bytes.toLocaleString("en")} bytes (${gib} GiB)`;
    }
    words.addEventListener("input", filter);
    category.addEventListener("change", filter);
    filter();
  }

  // ---- copy
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copies);
      const selection = getSelection();
      const range = document.createRange();
      range.selectNodeContents(source);
      selection.removeAllRanges();
      selection.addRange(range);
      let copied = false;
      try {
        await navigator.clipboard.writeText(source.textContent);
        copied = true;
      } catch {
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Selected: press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // ---- theme
  const theme = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme
    ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function label() {
    theme.textContent = dark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(dark()));
  }
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  label();
})();
