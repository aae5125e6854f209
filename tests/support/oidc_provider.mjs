// An OpenID provider for tests: `node oidc_provider.mjs`, with its configuration as JSON in the standard input.
//
// It prints a line when it listens, and ends when its standard input is closed.

import { pathToFileURL } from "node:url";

let text = "";
for await (const chunk of process.stdin) {
  text += chunk;
  if (text.includes("\n")) break;
}
const { modules, port, users, client, keys } = JSON.parse(text.slice(0, text.indexOf("\n")));
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`).href);

const provider = new Provider(`http://localhost:${port}`, {
  clients: [client],
  jwks: { keys },
  cookies: { keys: ["of the tests"] },
  scopes: ["openid", "profile", "email", "groups"],
  claims: {
    openid: ["sub"],
    profile: ["preferred_username"],
    email: ["email", "email_verified"],
    groups: ["groups"],
  },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  pkce: { required: () => true },
  findAccount: (_context, id) =>
    users[id] && { accountId: users[id].sub ?? id, claims: () => ({ sub: users[id].sub ?? id, ...users[id] }) },
});
const server = provider.listen(port, "127.0.0.1", () => console.log("listening"));
process.stdin.on("end", () => process.exit(0)).resume();
process.on("SIGTERM", () => server.close());
