-- The last part of the script that changes a hold with a note, which lives as long as the lock.
-- KEYS  as in `change.lua`, and last the notes
-- ARGV  as in `change.lua`
-- USES  `run` and `prolong_notes`
-- RETURNS as in `change.lua`
local notes = table.remove(KEYS)
local reply = run()
if type(reply) == 'number' and reply > 0 and ARGV[2] ~= '0' then
  prolong_notes(notes, KEYS[1])
end
return reply
