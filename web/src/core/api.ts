/** Requests to the local server, and its typed errors. */

export class ApiError extends Error {
  constructor(
    readonly code: string,
    readonly field: string | null,
    message: string,
  ) {
    super(message);
  }
}

export type Body = BodyInit | Record<string, unknown>;

export async function ask<T>(path: string, body?: Body, signal?: AbortSignal): Promise<T> {
  const response = await send(path, body, signal);
  const answer: unknown = await response.json().catch(() => null);
  if (answer === null) throw new ApiError("bad_answer", null, "The server's answer is not JSON.");
  return answer as T;
}

/** A response that is fine; ApiError for any other. */
export async function send(path: string, body?: Body, signal?: AbortSignal): Promise<Response> {
  const response = await reach(path, request(body, signal));
  if (!response.ok) throw refusal(response.status, await response.json().catch(() => null));
  return response;
}

function request(body: Body | undefined, signal: AbortSignal | undefined): RequestInit {
  const base: RequestInit = signal ? { signal } : {};
  if (body === undefined) return base;
  if (body instanceof Blob) return { ...base, method: "POST", body, headers: { "Content-Type": "application/octet-stream" } };
  return { ...base, method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
}

async function reach(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, init);
  } catch (problem) {
    if (problem instanceof DOMException && problem.name === "AbortError") throw problem;
    throw new ApiError("unreachable", null, "The server does not answer. Is `pipewave web` still running?");
  }
}

function refusal(status: number, answer: unknown): ApiError {
  const error = (answer as { error?: { code?: string; field?: string | null; message?: string } } | null)?.error;
  return new ApiError(error?.code ?? `http_${status}`, error?.field ?? null, error?.message ?? `The server answered ${status}.`);
}
