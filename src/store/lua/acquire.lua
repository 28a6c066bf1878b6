-- Acquires a free lock, or registers the client as waiting for one that is held. A repeat by the
-- same owner, whose first reply was lost, finds its hold. A lock that is offered to the client is
-- free for it.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 owner, 2 lease in ms, 3 life of the fence in ms, 4 life of the queue in ms, or 0 if the
--       client does not join it, 5 if the client may be in the queue: `queued`, or `yields` if a
--       client in front of it goes first that has not stopped (one that had no listener a moment
--       ago goes first in either case), 6 with 5: how many tokens to give, for holds that follow
--       one another
-- USES  `left`, `holder` and `foreign`
-- SETS  `begins`, `keeps`, `replaced`, `time`; `client`, and `queued`, whether it may be in the
--       queue
-- RETURNS the fence if held now, or {first fence, last fence}; {0, ms until the holder's lease ends
--         or -1} if held by another owner, {0, -1} if another client goes first
local queued = ARGV[5] == 'queued' or ARGV[5] == 'yields'
local begins, client, keeps, replaced, time = true, nil, nil, nil, nil
if left ~= -2 or queued then
  if foreign then
    return foreign
  end
  client = string.match(ARGV[1], '^(.*):')
  if holder == client .. ':0' then
    replaced = holder
  elseif holder then
    local mine = redis.pcall('hget', KEYS[1], ARGV[1])
    keeps = type(mine) == 'string' and mine ~= '0'
    begins = keeps
  else
    local first, i, rest = redis.pcall('zrange', KEYS[3], 0, 9, 'withscores'), 1, -1
    while first[i] and first[i] ~= client do
      local score = first[i + 1]
      local mark = math.floor(score * 1000 + 0.5) % 4 -- As `wake.lua` sets it.
      if mark == 3 then
        time = time or redis.call('time')
        rest = math.ceil(score + 2000 - time[1] * 1000 - time[2] / 1000)
      end
      if rest > 0 or mark < 2 and ARGV[5] == 'yields' then
        break
      end
      i = i + 2
    end
    begins, left = not first[i] or first[i] == client, rest > 0 and rest or -1
  end
end

