// Takes the code of `trainyard open` from the fragment of the address, which browsers do not send, and posts it.

function takeCode() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const code = parameters.get("code");
  if (!code) return;
  history.replaceState(null, "", "/sign-in"); // neither the history nor a copied address has the code
  const form = document.getElementById("code-form");
  form.elements.code.value = code;
  form.elements.next.value = parameters.get("next") ?? "";
  form.submit();
}

addEventListener("hashchange", takeCode);
takeCode();
