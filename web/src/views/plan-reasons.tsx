/** Why the plan is what it is: what would move it, what does not fit, and the prices it stands on. */

import { scaleLinear } from "d3-scale";

import { signedPercent, usd } from "../core/format";
import type { Elasticity, PlanAnswer, Price, Refusal } from "../core/types";
import { Card } from "../ui/copy";
import { Table } from "../ui/table";

export function Elasticities({ answer }: { answer: PlanAnswer }) {
  const most = Math.max(...answer.elasticities.map((one) => Math.abs(one.tokens_per_s_per_gpu_change_percent)), 1);
  return (
    <Card title="What would help the cheapest design" json={answer.elasticities} command={answer.command} note="The effect of 10 % more of one property of its GPU.">
      <Table
        label="Effect of 10 % more"
        rows={answer.elasticities}
        columns={[
          { key: "more", title: "10 % more", value: (one: Elasticity) => one.more.replace(/^\+10 % /, "") },
          { key: "rate", title: "Throughput", value: (one) => one.tokens_per_s_per_gpu_change_percent, show: (one) => <Signed value={one.tokens_per_s_per_gpu_change_percent} most={most} /> },
          { key: "tpot", title: "TPOT", value: (one) => one.tpot_ms_change_percent, show: (one) => signedPercent(one.tpot_ms_change_percent) },
          { key: "ttft", title: "TTFT", value: (one) => one.ttft_ms_change_percent, show: (one) => signedPercent(one.ttft_ms_change_percent) },
        ]}
        sort="-rate"
        narrow
      />
    </Card>
  );
}

function Signed({ value, most }: { value: number; most: number }) {
  const x = scaleLinear([-most, most], [0, 120]);
  return (
    <span class="metered">
      <svg class="signed" width="120" height="12" aria-hidden="true">
        <line x1="60" x2="60" y1="0" y2="12" class="base" />
        <rect x={Math.min(x(0), x(value))} width={Math.abs(x(value) - x(0))} y="2" height="8" class={value < 0 ? "down" : "up"} />
      </svg>
      <span>{signedPercent(value)}</span>
    </span>
  );
}

export function Refusals({ answer }: { answer: PlanAnswer }) {
  const { does_not_fit: refused, without_price: unpriced } = answer;
  if (!refused.length && !unpriced.length) return null;
  return (
    <Card title="What does not fit, and why" json={{ does_not_fit: refused, without_price: unpriced }} command={answer.command}>
      {refused.length > FEW && (
        <details class="reasons-all">
          <summary>{`${refused.reduce((count, one) => count + one.splits.length, 0)} splits do not fit, for ${refused.length} reasons`}</summary>
          <Reasons refused={refused} />
        </details>
      )}
      <ul class="reasons">
        {refused.length <= FEW && refused.map((one) => <Reason key={one.why} one={one} />)}
        {unpriced.length > 0 && (
          <li>
            <span>No price is known, so they are not ranked by cost:</span>
            <small>{unpriced.join(" · ")}</small>
          </li>
        )}
      </ul>
    </Card>
  );
}

/** Reasons that are shown at once; more of them fill a screen, and are folded. */
const FEW = 4;

function Reasons({ refused }: { refused: readonly Refusal[] }) {
  return (
    <ul class="reasons">
      {refused.map((one) => (
        <Reason key={one.why} one={one} />
      ))}
    </ul>
  );
}

function Reason({ one }: { one: Refusal }) {
  return (
    <li>
      <span>{one.why}</span>
      <small>{one.splits.join(" · ")}</small>
    </li>
  );
}

export function Prices({ answer }: { answer: PlanAnswer }) {
  if (!answer.prices.length) return null;
  return (
    <Card title="Prices used" json={answer.prices} note="Give your own under “Own prices”.">
      <Table
        label="Prices used"
        rows={answer.prices}
        columns={[
          { key: "gpu", title: "GPU", value: (one: Price) => one.gpu },
          { key: "usd", title: "USD an hour", value: (one) => one.usd_per_hour, show: (one) => usd(one.usd_per_hour) },
          { key: "provider", title: "Offer", value: (one) => one.provider },
          { key: "date", title: "Date", value: (one) => one.date },
          { key: "verified", title: "Verified", value: (one) => (one.verified ? "yes" : "no") },
        ]}
      />
    </Card>
  );
}
