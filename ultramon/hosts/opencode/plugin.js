// Written by `ultramon install opencode`, deleted by `ultramon uninstall opencode`.
// Hands what happens in each session to ultramon's resident over its socket; where none answers, to
// a process that the client does not wait for. What ultramon says for the agent is put behind the
// message that it is about, in each request that still holds this message.
import { spawn } from "node:child_process"
import { lstatSync } from "node:fs"
import { createConnection } from "node:net"

const { command: COMMAND, choices: CHOICES, package: PACKAGE } = __ULTRAMON__

const MAGIC = "ultramon resident 1\n"
const TAKEN_MS = 250
const ANSWER_MS = 3000
const PROCESS_MS = 6000
const ABORT_MS = 500
const PAUSE_MS = 15000
const MAX_BYTES = 1 << 20
const MAX_INFOS = 8
const MAX_RESULT = 2000 // whether there is a text, and none of it, is what counts
const MAX_ERROR = 500
const MAX_SESSIONS = 512
const MAX_KEPT = 4
const GONE = Symbol("gone")
const VARIABLES = ["HOME", "ULTRAMON_AUDIENCE", "ULTRAMON_PARENT_ID", "ULTRAMON_RUN", "ULTRAMON_STATE_DIR",
  "TMUX_PANE", "NO_COLOR", "OPENCODE_DB", "XDG_DATA_HOME", "XDG_CONFIG_HOME"]
const WAITED = ["request", "prompt", "compacting", "returned"] // by the client, where a resident hands them on
const LOADED = Symbol.for("ultramon.opencode")

const isOn = (name) => !["", "0", "false", "no", "off"].includes((process.env[name] ?? "").toLowerCase())
const inRelay = isOn("ULTRAMON_RELAY")
const folderOf = (path) => path.slice(0, path.lastIndexOf("/"))
const isOurs = () => !inRelay || folderOf(CHOICES).endsWith(`/relay/${process.env.ULTRAMON_RELAY}`)

function socketPath(directory) {
  const bytes = Buffer.from(directory.replace(/\/+$/, ""))
  const key = BigInt("0x" + (bytes.toString("hex") || "0")) % (2n ** 89n - 1n)
  const name = `/ultramon-${key.toString(16)}.socket`
  const folder = (process.env.XDG_RUNTIME_DIR ?? "").replace(/\/+$/, "")
  const fits = folder.startsWith("/") && Buffer.byteLength(folder + name) <= 100
  return (fits ? folder : `/tmp/ultramon-${process.geteuid()}`) + name
}

// What tells the socket of this user from one that another resident has made since.
function privateSocket(path) {
  try {
    const found = lstatSync(path)
    const isPrivate = found.isSocket() && found.uid === process.geteuid() && (found.mode & 0o077) === 0
    return isPrivate ? `${found.ino} ${found.ctimeMs}` : undefined
  } catch {
    return undefined
  }
}

function variablesFor(limits) {
  const found = Object.fromEntries(VARIABLES.map((name) => [name, process.env[name]]).filter(([, one]) => one !== undefined))
  return limits ? { ...found, OPENCODE_MODEL_LIMITS: JSON.stringify(limits) } : found
}

function encode(payload, variables) {
  const listed = Object.entries(variables).map(([name, value]) => `${name}=${value}`).join("\0")
  const fields = ["1." + PACKAGE, "opencode hook", CHOICES, String(process.pid), listed, payload].map((one) => Buffer.from(one))
  const body = Buffer.concat(fields.flatMap((one) => [Buffer.from(one.length + ":"), one]))
  return Buffer.concat([Buffer.from(MAGIC + String(body.length).padStart(8, "0")), body])
}

let pausedUntil = 0
const kept = []

// A connection on which the resident answers one call after the other. What it says goes to the call
// that has it.
function open(path, place) {
  const line = { place, connection: createConnection(path) }
  const lose = () => {
    const at = kept.indexOf(line)
    if (at >= 0) kept.splice(at, 1)
    line.onLost?.()
  }
  line.connection.on("error", lose).on("close", lose).on("data", (chunk) => line.onData?.(chunk))
  return line
}

// Resolves to the answer, maybe empty; to null where the resident leaves the call to a process; to
// undefined where there is none, or it is gone.
async function ask(payload, variables) {
  const state = process.env.ULTRAMON_STATE_DIR || folderOf(CHOICES)
  if (inRelay || isOn("ULTRAMON_NO_RESIDENT") || !state.startsWith("/") || Date.now() < pausedUntil) return undefined
  const path = socketPath(state)
  const request = encode(payload, variables)
  const place = request.length > MAX_BYTES ? undefined : privateSocket(path)
  if (place === undefined) return undefined
  for (let line; (line = kept.pop()); ) {
    // Another resident listens there now, or this one has ended while nothing was asked.
    if (line.place !== place) line.connection.destroy()
    else if ((await askOn(line, request)) !== GONE) return line.said
  }
  const line = open(path, place)
  return (await askOn(line, request)) === GONE ? undefined : line.said
}

function askOn(line, request) {
  const { connection } = line
  connection.ref()
  return new Promise((resolve) => {
    let data = Buffer.alloc(0)
    let answer
    const end = (value, isOver) => {
      clearTimeout(timer)
      line.onData = line.onLost = undefined
      line.said = value
      if (isOver && kept.length < MAX_KEPT) {
        connection.unref()
        kept.push(line)
      } else connection.destroy()
      resolve(value)
    }
    // A client that computes meanwhile has not looked at the socket: that is no sign of a resident.
    let tries = 3
    let began = performance.now()
    const expire = () => setImmediate(() => {
      if (data.length) return
      const isLate = performance.now() - began > 1.2 * TAKEN_MS
      began = performance.now()
      if (isLate && --tries) return (timer = setTimeout(expire, TAKEN_MS))
      pausedUntil = Date.now() + PAUSE_MS
      end(undefined)
    })
    let timer = setTimeout(expire, TAKEN_MS)
    line.onLost = () => end(answer ?? (data.length ? undefined : GONE))
    line.onData = (chunk) => {
      const isFirst = data.length === 0
      data = Buffer.concat([data, chunk])
      if (isFirst) {
        clearTimeout(timer)
        timer = setTimeout(() => end(answer ?? null), ANSWER_MS)
      }
      if (answer !== undefined) return end(answer, true)
      if (data.length < 2) return
      const word = String.fromCharCode(data[1])
      if (word === "N") return end("", true)
      if (word !== "A") return end(null, true)
      const size = data.length >= 10 ? Number(data.subarray(2, 10)) : NaN
      if (!(data.length >= 10 + size)) return
      answer = data.subarray(10, 10 + size).toString()
      connection.write("!")
    }
    connection.write(request)
  })
}

// What the process says, and when it has been given the payload.
function run(payload, variables) {
  const child = spawn("/bin/sh", ["-c", COMMAND], {
    detached: true, // it stores the end of a session after the client has ended
    env: { ...process.env, ...variables },
    stdio: ["pipe", "pipe", "ignore"],
  })
  const said = new Promise((resolve) => {
    let text = ""
    child.stdout.on("data", (chunk) => (text += chunk))
    child.on("error", () => resolve(""))
    child.on("close", () => resolve(text))
  })
  const written = new Promise((resolve) => {
    child.stdin.on("error", resolve)
    child.stdin.end(payload, resolve)
  })
  child.unref()
  return { said: said.then(decode), written }
}

const within = (promise, ms) => {
  let timer
  const late = new Promise((resolve) => (timer = setTimeout(resolve, ms)))
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

function decode(said) {
  try {
    return said ? JSON.parse(said) : {}
  } catch {
    return {}
  }
}

const slim = (info) => ({ id: info.id, role: info.role, summary: info.summary, finish: info.finish, tokens: info.tokens,
  time: info.time, modelID: info.modelID, cost: info.cost, error: info.error && { name: info.error.name } })

function newestOf(messages) {
  const found = []
  let replies = 0
  for (let at = messages.length - 1; at >= 0 && found.length < MAX_INFOS && replies < 2; at--) {
    const { info } = messages[at]
    if (info.role !== "assistant") continue
    found.push(slim(info))
    if (info.summary && info.time?.completed) break
    if (info.tokens?.total) replies++
  }
  return found
}

class Session {
  constructor(id, parent, title) {
    Object.assign(this, { id, parent, title, infos: [], texts: [], late: [], rare: [], tail: Promise.resolve() })
  }

  get root() {
    return this.parent ? this.parent.root : this
  }

  // Calls of one session come one after the other, as they happened.
  send(event, more = {}) {
    const child = this.parent && { subagentID: this.id, title: this.title }
    const payload = JSON.stringify({ event, sessionID: this.root.id, cwd: this.cwd, ...child, messages: this.infos, ...more })
    const call = this.tail.then(() => this.call(payload, event))
    this.tail = call.catch(() => {})
    return call
  }

  async call(payload, event) {
    const variables = variablesFor(this.limits)
    const answer = await ask(payload, variables)
    if (typeof answer === "string") return decode(answer)
    // That a tool runs is worth no process: the next request says more.
    if (event === "tool" && answer === undefined) return {}
    const { said, written } = run(payload, variables)
    if (WAITED.includes(event) && (answer === null || inRelay)) return (await within(said, PROCESS_MS)) ?? {}
    said.then((one) => this.keep(one))
    await within(written, TAKEN_MS)
    return {}
  }

  keep(said) {
    if (said.text) this.late.push(said.text)
  }

  note(info) {
    this.infos = [slim(info), ...this.infos.filter((one) => one.id !== info.id)].slice(0, MAX_INFOS)
  }
}

if (inRelay && isOurs()) delete process.env.OPENCODE_CONFIG_CONTENT // what the agent starts is no context

export const Ultramon = async (ctx) => {
  if (globalThis[LOADED] || isOn("ULTRAMON_DISABLED") || !isOurs()) return {}
  globalThis[LOADED] = true
  const sessions = new Map()
  let compaction = {}
  let count = 0

  const add = (id, parentID, title) => {
    const session = new Session(id, parentID ? find(parentID) : undefined, title)
    session.cwd = ctx.directory
    sessions.set(id, session)
    if (sessions.size > MAX_SESSIONS) sessions.delete(sessions.keys().next().value)
    return session
  }
  const find = (id) => sessions.get(id) ?? add(id)

  // A resumed session is not announced; what it is a part of is asked once.
  const meet = async (id) => {
    if (sessions.has(id)) return sessions.get(id)
    const found = await within(ctx.client.session.get({ path: { id } }).then((one) => one.data, () => undefined), 1000)
    if (sessions.has(id)) return sessions.get(id)
    const parent = found?.parentID && (await meet(found.parentID))
    const session = add(id, parent?.id, found?.title)
    if (!session.parent) session.send("resumed")
    return session
  }

  const events = {
    "session.created": ({ info }) => {
      const session = sessions.get(info.id) ?? add(info.id, info.parentID, info.title)
      session.cwd = info.directory ?? session.cwd
      session.send("created")
    },
    "message.updated": ({ info }) => {
      if (info.role !== "assistant") return
      const session = find(info.sessionID)
      session.note(info)
      if (info.tokens?.total) session.error = undefined
      if (info.summary && info.time?.completed) session.isCompacting = false
    },
    "message.part.updated": ({ part }) => {
      if (part.type === "compaction") find(part.sessionID).isAutomatic = part.auto
      if (part.type !== "tool" || part.tool !== "task" || !["completed", "error"].includes(part.state.status)) return
      const session = find(part.sessionID)
      const { metadata, output, error } = part.state
      if (!metadata?.sessionId || session.returned === part.callID) return
      session.returned = part.callID
      const said = session.send("returned", { callID: part.callID, childID: metadata.sessionId,
        output: output?.slice(0, MAX_RESULT), error: error?.slice(0, MAX_ERROR) })
      // The next request of this session waits for it: it may say why the result is empty.
      session.rare.push(said.then((one) => session.keep(one)))
    },
    "session.error": ({ sessionID, error }) => {
      if (sessionID) find(sessionID).error = error?.name
    },
    "session.idle": ({ sessionID }) => {
      const session = find(sessionID)
      session.isCompacting = session.isBusy = false
      session.send("idle", { error: session.error })
    },
    "permission.asked": ({ sessionID }) => sessionID && find(sessionID).send("permission"),
    "question.asked": ({ sessionID }) => sessionID && find(sessionID).send("question"),
    "session.deleted": ({ info }) => sessions.delete(info?.id),
  }

  const place = (session, messages) => {
    const user = messages.findLast((one) => one.info.role === "user")?.info
    session.texts = session.texts.filter(({ after }) => messages.some((one) => one.info.id === after))
    for (const { after, text, id } of user ? session.texts : []) {
      let at = messages.findIndex((one) => one.info.id === after) + 1
      while (messages[at]?.info.id.startsWith("msg_ultramon")) at++
      const part = { id: "prt" + id, type: "text", text, synthetic: true, sessionID: session.id, messageID: "msg" + id }
      messages.splice(at, 0, { info: { ...user, id: "msg" + id }, parts: [part] })
    }
  }

  const hooks = {
    config: (config) => (compaction = config.compaction ?? {}),
    event: ({ event }) => events[event.type]?.(event.properties),
    "chat.message": async (input, output) => {
      const session = await meet(input.sessionID)
      const texts = output.parts.filter((one) => one.type === "text" && !one.synthetic).map((one) => one.text)
      session.prompt = texts.join("\n").slice(0, 20000)
      session.model = output.message.model?.modelID
    },
    "chat.params": (input) => {
      if (input.agent === "title" || input.agent?.name === "title") return
      const { context, input: most, output } = input.model.limit ?? {}
      find(input.sessionID).limits = { context, input: most, output, reserved: compaction.reserved, auto: compaction.auto }
    },
    "tool.execute.before": (input) => {
      find(input.sessionID).send("tool", { callID: input.callID, messages: [] })
    },
    "tool.execute.after": (input) => {
      if (input.tool !== "todowrite") return
      const session = find(input.sessionID)
      session.send("todo", { callID: input.callID, todos: input.args?.todos, messages: [] }).then((said) => session.keep(said))
    },
    "experimental.chat.messages.transform": async (_, output) => {
      const last = output.messages.at(-1)?.info
      if (!last?.sessionID) return
      const session = find(last.sessionID)
      if (session.isCompacting) return
      session.isBusy = true
      const { prompt, model } = session
      session.prompt = undefined
      await within(Promise.all(session.rare.splice(0)), PROCESS_MS)
      const event = prompt === undefined ? "request" : "prompt"
      const said = await session.send(event, { prompt, model, messages: newestOf(output.messages) })
      if (said.note) ctx.client.tui?.showToast({ body: { message: said.note, variant: "warning" } }).catch(() => {})
      // The client answers once this hook has returned; by then it knows that nothing is to be sent.
      if (said.end) return await within(ctx.client.session.abort({ path: { id: session.id } }), ABORT_MS)
      session.keep(said)
      for (const text of session.late.splice(0)) session.texts.push({ after: last.id, text, id: `_ultramon${++count}` })
      place(session, output.messages)
    },
    "experimental.session.compacting": async (input, output) => {
      const session = find(input.sessionID)
      session.isCompacting = true
      const said = await session.send("compacting", { auto: session.isAutomatic })
      if (said.text) output.context.push(said.text)
    },
    dispose: async () => {
      const open = [...sessions.values()].filter((one) => !one.parent)
      await within(Promise.all(open.map((one) => one.tail)), TAKEN_MS)
      for (const one of open) one.send("dispose", { error: one.error, isBusy: one.isBusy })
      await within(Promise.all(open.map((one) => one.tail)), ANSWER_MS)
      globalThis[LOADED] = false
    },
  }
  // Whatever is odd about an event, the client continues.
  const guarded = ([name, hook]) => [name, async (...args) => {
    try {
      await hook(...args)
    } catch {}
  }]
  return Object.fromEntries(Object.entries(hooks).map(guarded))
}
