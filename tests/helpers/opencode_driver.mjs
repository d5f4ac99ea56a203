// Calls the hooks of a plugin as the client does: one line of JSON in for each, one out.
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"

const aborted = []
const client = { session: {
  get: async ({ path }) => ({ data: { id: path.id, title: "a title" } }),
  abort: async ({ path }) => aborted.push(path.id),
} }
const { Ultramon } = await import(pathToFileURL(process.argv[2]))
const hooks = await Ultramon({ client, directory: process.cwd() })
for await (const line of createInterface({ input: process.stdin })) {
  const { hook, input, output } = JSON.parse(line)
  const began = performance.now()
  await hooks[hook]?.(input, output)
  const ms = performance.now() - began
  console.log(JSON.stringify({ output, ms, aborted, hooks: Object.keys(hooks).length }))
}
