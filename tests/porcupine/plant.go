package main

import (
	"fmt"
	"sort"
)

// plantFault changes a correct history like a fault of the library would.
func plantFault(histories map[int]*History, fault string) error {
	for _, name := range names(histories) {
		if histories[name].plant(fault) {
			return nil
		}
	}
	return fmt.Errorf("no place for the fault %q in this history", fault)
}

func (h *History) plant(fault string) bool {
	switch fault {
	case "update":
		return h.loseUpdate()
	case "fence":
		return h.repeatFence()
	case "twice":
		return h.grantAgain(Exclusive, 1)
	case "permit":
		return h.grantAgain(Permit, permits)
	}
	return false
}

// loseUpdate lets a reader miss the write before it.
func (h *History) loseUpdate() bool {
	for i := len(h.register) / 2; i < len(h.register); i++ {
		in, out := h.register[i].Input.(registerInput), h.register[i].Output.(registerOutput)
		if !in.writes && !out.stale && !out.unknown && out.value > 0 {
			out.value--
			h.register[i].Output = out
			return true
		}
	}
	return false
}

// repeatFence gives a writer the token of the writer before it.
func (h *History) repeatFence() bool {
	writers := make([]*Hold, 0, len(h.holds))
	for _, hold := range h.holds {
		if hold.side == Exclusive {
			writers = append(writers, hold)
		}
	}
	if len(writers) < 2 {
		return false
	}
	sort.Slice(writers, func(i, j int) bool { return writers[i].granted < writers[j].granted })
	at := len(writers) / 2
	if at == 0 {
		at = 1
	}
	writers[at].fence = writers[at-1].fence
	return true
}

// grantAgain adds holds while another one is relied on, one more than allowed.
func (h *History) grantAgain(side Side, more int) bool {
	for _, hold := range h.holds {
		if hold.side == side && hold.until-hold.granted > 1000 {
			for i := 1; i <= more; i++ {
				at := hold.granted + int64(i)
				second := *hold
				second.fence, second.call, second.granted = hold.fence+1, at, at+1
				if side == Permit {
					second.fence = 0
				}
				h.holds = append(h.holds, &second)
			}
			return true
		}
	}
	return false
}
