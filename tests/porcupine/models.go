package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The permits of the torture's semaphores.
const permits = 3

// Side is what a hold excludes.
type Side int

const (
	Exclusive Side = iota
	Permit
	Shared
)

// Begin and end of a hold are two operations: the end may come at any time after the holder last
// relied on the hold.
type holdInput struct {
	begins bool
	hold   int
	side   Side
	fence  uint64
}

// holds is a state: the current holds, and the last fencing token.
type holds struct {
	// Sorted, each as `<side><number>,`, so that states can be compared.
	live  string
	fence uint64
}

func (h holds) count(side Side) int {
	return strings.Count(h.live, fmt.Sprintf("%d:", side))
}

func key(in holdInput) string {
	return fmt.Sprintf("%d:%d,", in.side, in.hold)
}

func (h holds) with(in holdInput) holds {
	all := append(strings.SplitAfter(h.live, ","), key(in))
	sort.Strings(all)
	return holds{strings.Join(all, ""), max(h.fence, in.fence)}
}

func (h holds) without(in holdInput) holds {
	for _, one := range strings.SplitAfter(h.live, ",") {
		if one == key(in) {
			return holds{strings.Replace(","+h.live, ","+one, ",", 1)[1:], h.fence}
		}
	}
	return h
}

// admits returns whether the hold can exist beside the others, with a token that fits theirs: that of
// a writer is greater than all earlier ones, that of a reader is not less.
func (h holds) admits(in holdInput) bool {
	switch in.side {
	case Exclusive:
		return h.live == "" && in.fence > h.fence
	case Shared:
		return h.count(Exclusive) == 0 && in.fence >= h.fence
	default:
		return h.count(Permit) < permits
	}
}

func holdModel() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return holds{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			before, in := state.(holds), input.(holdInput)
			if in.begins {
				return before.admits(in), before.with(in)
			}
			after := before.without(in)
			return after != before, after
		},
	}
}

type registerInput struct {
	writes bool
	fence  uint64
	value  uint64
}

type registerOutput struct {
	unknown bool
	stale   bool
	value   uint64
}

// register is a state: the value, and the greatest token that it was read or written with.
type register struct {
	fence uint64
	value uint64
}

func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return register{} },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			before, in, out := state.(register), input.(registerInput), output.(registerOutput)
			if in.fence < before.fence {
				return out.unknown || out.stale, before
			}
			after := register{in.fence, before.value}
			if in.writes {
				after.value = in.value
			}
			right := !out.stale && (in.writes || out.value == before.value)
			return out.unknown || right, after
		},
	}
}
