-- The last part of the script that acquires a side of a read-write lock or permits for holds with
-- the same note, which is written once they have begun.
-- KEYS  as in `acquire_member.lua`, and last the notes
-- ARGV  as in `acquire_member.lua`, and last the text
-- USES  `run` and `write_note`
-- RETURNS as in `acquire_member.lua`
local notes, text = table.remove(KEYS), table.remove(ARGV)
local reply = run()
local first = type(reply) == 'table' and reply[1] or reply
if type(first) ~= 'number' or first == 0 then
  return reply
end
write_note(notes, KEYS[1], string.sub(ARGV[1], 3), text)
if first == 1 then
  for i = 2, #reply - 1 do
    write_note(notes, KEYS[1], string.sub(ARGV[9 + i], 3), text)
  end
end
-- Holds that have ended without a release have left notes, and the key may never expire.
local count = redis.pcall('hlen', notes)
local members = redis.pcall('zcount', KEYS[1], '-inf', '+inf')
if type(count) == 'number' and type(members) == 'number' and count > members then
  local all = redis.pcall('hgetall', notes)
  for i = 1, #all, 2 do
    local is_held = false
    for _, kind in ipairs({'r:', 'w:', 'p:'}) do
      is_held = is_held or redis.pcall('zscore', KEYS[1], kind .. all[i])
    end
    if not is_held then
      redis.pcall('hdel', notes, all[i])
    end
  end
end
return reply
