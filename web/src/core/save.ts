/** Files made by the page. */

export function save(content: string | Blob, name: string, type = "text/plain"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(typeof content === "string" ? new Blob([content], { type }) : content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Rows as comma-separated values; what holds a comma or a quote is quoted. */
export const csv = (rows: readonly (readonly (string | number)[])[]): string => rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";

const quoted = (value: string | number): string => (/[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
