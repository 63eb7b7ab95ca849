/** The entry point: load the state, open the event stream and render the page. */

import { effect } from "@preact/signals";
import { type JSX, render } from "preact";
import "../app.css";
import { openFromLocation, readLocationHash, setTheme } from "./actions.ts";
import { onKeyDown } from "./keyboard-shortcuts.ts";
import { approvals, creatingSession, openSession, openSessionId, sidebarOpen, theme } from "./store.ts";
import { refreshAll, startStream } from "./event-stream.ts";
import { ApprovalList } from "./components/approvals.tsx";
import { Conversation, LoadingConversation } from "./components/conversation.tsx";
import { Dialogs } from "./components/dialogs.tsx";
import { ConnectionBanner, StatusBar, ToastList } from "./components/status-bar.tsx";
import { HomePage } from "./components/home.tsx";
import { SidePanel } from "./components/side-panel.tsx";
import { Sidebar } from "./components/sidebar.tsx";
import { sessionTitle } from "./format.ts";

function App(): JSX.Element {
  return (
    <>
      <ApprovalList />
      <ConnectionBanner />
      <div class="layout">
        <Sidebar />
        {sidebarOpen.value && <div class="backdrop" onClick={() => (sidebarOpen.value = false)} />}
        {creatingSession.value ? <LoadingConversation /> : openSessionId.value ? <Conversation /> : <HomePage />}
        <SidePanel />
      </div>
      <ToastList />
      <StatusBar />
      <Dialogs />
    </>
  );
}

effect(() => {
  const approvalCount = approvals.value.length ? `(${approvals.value.length}) ` : "";
  document.title = approvalCount + (openSession.value ? `${sessionTitle(openSession.value)} · Retinue` : "Retinue");
});
setTheme(theme.value);
document.addEventListener("keydown", onKeyDown);
window.addEventListener("hashchange", openFromLocation);
openSessionId.value = readLocationHash();
void startStream().then(() => {
  openFromLocation();
  void refreshAll();
});
render(<App />, document.getElementById("page")!);
