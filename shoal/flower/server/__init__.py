"""The server's side.

- server        wait for members, play a round, judge it, write it down
- sessions      the world as it happened, and the way back to the last good model
- engine        the grid as an engine: orders to messages, replies to results
- masked_round  secure aggregation, the server's half
- transport     send, receive within bounds, believe or refuse
- screening     what every reply must be like
- preparation   figures of members' rows, asked once before the first round
- members       who is registered and who is here
- record        files of a real run: records, events, counts per member
"""
