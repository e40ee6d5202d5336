/** Names and what they are, side by side. */

export type Fact = readonly [name: string, value: string, more?: string];

export function Facts({ facts }: { facts: readonly Fact[] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value, more]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value}
            {more && <small>{more}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
