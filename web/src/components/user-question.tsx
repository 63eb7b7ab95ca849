/** A question of the `ask_user` tool with its suggested answers; any other answer is typed in the composer. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { ToolCall } from "../api-types.ts";
import { openSessionId } from "../store.ts";
import * as conversation from "../conversation.ts";
import { formatValue, parseArguments } from "../format.ts";
import { PlainText } from "./widgets.tsx";

export const ASK_USER_TOOL = "ask_user";

export function UserQuestion({ call }: { call: ToolCall }): JSX.Element {
  const sentAnswer = useSignal("");
  const args = new Map(parseArguments(call.args) ?? []);
  const rawOptions = args.get("options");
  const options = Array.isArray(rawOptions) ? rawOptions.map(formatValue) : [];
  const answer = (text: string): void => {
    const id = openSessionId.value;
    if (!id) return;
    sentAnswer.value = text;
    void conversation.sendMessage(id, text).then((sent) => {
      if (!sent) sentAnswer.value = "";
    });
  };
  return (
    <section class="user-question" data-test="question" aria-label="The agent asks you">
      <p class="user-question-text" dir="auto"><PlainText text={formatValue(args.get("question") ?? "")} /></p>
      {options.length > 0 && (
        <div class="user-question-options" role="group" aria-label="Answers">
          {options.map((each) => (
            <button type="button" key={each} class="button" data-test="option" disabled={sentAnswer.value !== ""} onClick={() => answer(each)}><PlainText text={each} /></button>
          ))}
        </div>
      )}
      <p class="muted">{sentAnswer.value ? "Sent." : options.length ? "Choose one, or type another answer below." : "Type your answer below."}</p>
    </section>
  );
}
