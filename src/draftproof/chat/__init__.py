"""Chats: messages to a prompt with the model's own template, and the answer back to content, reasoning, tool calls."""

from draftproof.chat.message import ChatMessage, Delta, ToolCall
from draftproof.chat.prepare import Chat, Messages, prepare_chat
from draftproof.chat.reader import AnswerReader
from draftproof.chat.tools import TOOL_PARSERS

__all__ = [
    "TOOL_PARSERS",
    "AnswerReader",
    "Chat",
    "ChatMessage",
    "Delta",
    "Messages",
    "ToolCall",
    "prepare_chat",
]
