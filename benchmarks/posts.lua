-- Posts readings of many agents in turn.
-- Arguments: the secret, the number of agents, and how often each reading is posted.

local posts = 0

function init(arguments)
  secret, agents, repeats = arguments[1], tonumber(arguments[2]), tonumber(arguments[3])
  headers = { ["Content-Type"] = "application/json", ["X-Ultramon-Hook-Secret"] = secret }
end

function request()
  local agent = posts % agents
  local step = math.floor(posts / agents / repeats)
  -- Spread: not all of them reach a rung at the same moment.
  local percentage = (step + agent) % 100 + 1
  posts = posts + 1
  local body = string.format(
    '{"session_id":"agent-%d","used_percentage":%d,"total_input_tokens":%d}',
    agent, percentage, percentage * 2000)
  return wrk.format("POST", "/hooks/context-usage", headers, body)
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), failed))
end
