/** A table that sorts by any column; numbers right, words left, and it scrolls by itself when narrow. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface Column<Row> {
  key: string;
  title: string;
  unit?: string;
  /** What the column sorts by; a number also means: align right. */
  value: (row: Row) => number | string | null;
  show?: (row: Row) => ComponentChildren;
  hint?: string;
}

interface TableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  /** Sorted at first by this column: a leading "-" means largest first. */
  sort?: string;
  selected?: Row | null;
  pick?: (row: Row) => void;
  pickLabel?: (row: Row) => string;
  most?: number;
  /** As wide as its content, not as the page. */
  narrow?: boolean;
}

export function Table<Row>({ label, rows, columns, sort = "", selected, pick, pickLabel, most = 50, narrow = false }: TableProps<Row>) {
  const [order, setOrder] = useState(sort);
  const [all, setAll] = useState(false);
  const sorted = arrange(rows, columns, order);
  const shown = all ? sorted : sorted.slice(0, most);
  return (
    <>
      <div class="table-box" tabIndex={0} role="region" aria-label={`Table: ${label}`}>
        <table class={narrow ? "narrow" : undefined}>
          <thead>
            <tr>
              {columns.map((column) => (
                <Head key={column.key} column={column} number={isNumber(rows, column)} order={order} set={setOrder} />
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, index) => (
              <tr key={index} class={row === selected ? "selected" : ""} onClick={() => pick?.(row)}>
                {columns.map((column, place) => (
                  <td key={column.key} class={isNumber(rows, column) ? "num" : ""}>
                    {pick && place === 0 ? (
                      <button type="button" class="pick" aria-pressed={row === selected} aria-label={pickLabel?.(row)}>
                        {cell(column, row)}
                      </button>
                    ) : (
                      cell(column, row)
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sorted.length > shown.length && (
        <button type="button" class="more" onClick={() => setAll(true)}>
          Show all {sorted.length} rows
        </button>
      )}
    </>
  );
}

function Head<Row>({ column, number, order, set }: { column: Column<Row>; number: boolean; order: string; set: (order: string) => void }) {
  const up = order === column.key;
  const down = order === `-${column.key}`;
  return (
    <th scope="col" class={number ? "num" : ""} aria-sort={up ? "ascending" : down ? "descending" : "none"}>
      <button type="button" title={column.hint} onClick={() => set(up ? `-${column.key}` : column.key)}>
        {column.title}
        <span class="arrow" aria-hidden="true">
          {up ? "▲" : down ? "▼" : ""}
        </span>
        {column.unit && <span class="unit"> {column.unit}</span>}
      </button>
    </th>
  );
}

const cell = <Row,>(column: Column<Row>, row: Row): ComponentChildren => (column.show ? column.show(row) : (column.value(row) ?? "–"));

const isNumber = <Row,>(rows: readonly Row[], column: Column<Row>): boolean => rows.some((row) => typeof column.value(row) === "number");

function arrange<Row>(rows: readonly Row[], columns: readonly Column<Row>[], order: string): readonly Row[] {
  const descending = order.startsWith("-");
  const column = columns.find((one) => one.key === (descending ? order.slice(1) : order));
  if (!column) return rows;
  return [...rows].sort((a, b) => compare(column.value(a), column.value(b), descending ? -1 : 1));
}

/** What is not known comes last in either direction. */
function compare(a: number | string | null, b: number | string | null, direction: number): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
}
