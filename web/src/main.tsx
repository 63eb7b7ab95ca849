/** The page begins here: what it knows is asked for, the stream is opened, and the views are drawn. */

import { effect } from "@preact/signals";
import { render, type JSX } from "preact";
import "../app.css";
import { addressed, follow, setTheme } from "./actions.ts";
import { onKey } from "./keyboard-shortcuts.ts";
import { approvals, drawer, making, open, openId, theme } from "./store.ts";
import { begin, resync } from "./event-stream.ts";
import { Approvals } from "./components/approvals.tsx";
import { Conversation, Opening } from "./components/conversation.tsx";
import { Dialogs } from "./components/dialogs.tsx";
import { Bar, Lost, Toasts } from "./components/status-bar.tsx";
import { Home } from "./components/home.tsx";
import { Panels } from "./components/side-panel.tsx";
import { Sidebar } from "./components/sidebar.tsx";
import { titleOf } from "./format.ts";

function Page(): JSX.Element {
  return (
    <>
      <Approvals />
      <Lost />
      <div class="middle">
        <Sidebar />
        {drawer.value && <div class="shade" onClick={() => (drawer.value = false)} />}
        {making.value ? <Opening /> : openId.value ? <Conversation /> : <Home />}
        <Panels />
      </div>
      <Bar />
      <Toasts />
      <Dialogs />
    </>
  );
}

effect(() => {
  const asked = approvals.value.length ? `(${approvals.value.length}) ` : "";
  document.title = asked + (open.value ? `${titleOf(open.value)} · Retinue` : "Retinue");
});
setTheme(theme.value);
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", follow);
openId.value = addressed();
void begin().then(() => {
  follow();
  void resync();
});
render(<Page />, document.getElementById("page")!);
