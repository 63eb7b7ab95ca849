/** What an agent asks a person in words: the question as it stands, and the answers it offers. Any other is typed. */

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Called } from "../api-types.ts";
import { openId } from "../store.ts";
import * as talk from "../conversation.ts";
import { argumentsOf, asText } from "../format.ts";
import { Plain } from "./widgets.tsx";

export const ASKS = "ask_user";

export function Question({ call }: { call: Called }): JSX.Element {
  const given = useSignal("");
  const found = new Map(argumentsOf(call.args) ?? []);
  const offered = found.get("options");
  const options = Array.isArray(offered) ? offered.map(asText) : [];
  const answer = (words: string): void => {
    const id = openId.value;
    if (!id) return;
    given.value = words;
    void talk.say(id, words).then((sent) => {
      if (!sent) given.value = "";
    });
  };
  return (
    <section class="inquiry" data-test="question" aria-label="The agent asks you">
      <p class="inquiry-words" dir="auto"><Plain text={asText(found.get("question") ?? "")} /></p>
      {options.length > 0 && (
        <div class="inquiry-options" role="group" aria-label="Answers">
          {options.map((each) => (
            <button type="button" key={each} class="button" data-test="option" disabled={given.value !== ""} onClick={() => answer(each)}><Plain text={each} /></button>
          ))}
        </div>
      )}
      <p class="quiet">{given.value ? "Sent." : options.length ? "Choose one, or type another answer below." : "Type your answer below: it goes on with it."}</p>
    </section>
  );
}
