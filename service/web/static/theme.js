// The theme of all pages: that of the system, light or dark. A plain script in the head, so that it is set before the first paint.
(() => {
  const KEY = "trainyard.theme";
  const THEMES = ["system", "light", "dark"];
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = stored();

  const selectOf = () => /** @type {HTMLSelectElement | null} */ (document.getElementById("theme"));
  /** The theme that the user chose in this browser. A browser may refuse to store anything. */
  function stored() {
    try {
      const name = localStorage.getItem(KEY);
      return THEMES.find((theme) => theme === name) ?? "system";
    } catch {
      return "system";
    }
  }

  /** @param {string} name */
  function store(name) {
    try {
      if (name === "system") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, name);
    } catch {
      // The theme stays until the next page.
    }
  }

  /**
   * Show the chosen theme. What is drawn with its colours listens to `themechange`.
   *
   * @param {string} name
   */
  function apply(name) {
    chosen = name;
    const shown = name === "system" ? (system.matches ? "dark" : "light") : name;
    const select = selectOf();
    if (select) select.value = name;
    if (document.documentElement.dataset.theme === shown) return;
    document.documentElement.dataset.theme = shown;
    document.dispatchEvent(new Event("themechange"));
  }

  apply(chosen);
  system.addEventListener("change", () => apply(chosen));
  addEventListener("storage", ({ key }) => {
    if (key === KEY || key === null) apply(stored());
  });
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen); // a browser may have restored another option after going back
    const select = selectOf();
    select?.addEventListener("change", () => {
      store(select.value);
      apply(select.value);
    });
  });
})();
